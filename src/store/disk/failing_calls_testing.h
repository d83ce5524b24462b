// Runs code whose system calls fail as those of a full disk or of a file system without locks do. A filter
// of seccomp(2) answers the calls of one thread; other threads of the process continue.
//
//   WithFailingCalls({{.number = SYS_flock, .error = ENOLCK}}, [&] { store = OpenDiskStore(…); });
//
// Thread safety: any number of threads at once.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

namespace kvcache::store {

// A system call, and the error that it returns: always, or if one of its arguments is in [from, below).
struct FailingCall {
  static constexpr int kAnyArguments = -1;
  long number = 0;
  int error = 0;
  int argument = kAnyArguments;
  std::uint32_t from = 0;
  std::uint32_t below = 0;
};

// The instructions that answer one call. The last one is reached only if the call fails.
inline void AddRule(std::vector<sock_filter>& filter, const FailingCall& call) {
  const bool asks = call.argument != FailingCall::kAnyArguments;
  const auto answer = SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(call.error);
  const auto value = offsetof(seccomp_data, args) +
                     sizeof(std::uint64_t) * static_cast<std::size_t>(asks ? call.argument : 0);
  const auto add = [&](sock_filter instruction) { filter.push_back(instruction); };
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call.number), 0,
               static_cast<std::uint8_t>(asks ? 4 : 1)));
  if (asks) {
    add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(value)));
    add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, call.below, 2, 0));
    add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, call.from, 0, 1));
  }
  add(BPF_STMT(BPF_RET | BPF_K, answer));
}

// Calls `body` in a thread of its own, in which these calls fail. Returns false without a call if the
// system has no such filters.
inline bool WithFailingCalls(std::initializer_list<FailingCall> calls,
                             const std::function<void()>& body) {
  std::vector<sock_filter> filter;
  for (const FailingCall& call : calls) AddRule(filter, call);
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  bool is_filtered = false;
  std::thread([&] {
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    is_filtered = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    if (is_filtered) body();
  }).join();
  return is_filtered;
}

}  // namespace kvcache::store
