// Runs code whose system calls of one kind wait until a function returns: a test does something at a moment that is
// short otherwise. seccomp(2) tells of the calls of one thread; other threads of the process continue.
//
// Thread safety: any number of threads at once.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>

namespace kvcache::store {

// Calls `body` in a thread of its own, and `before` in another one before each of its calls of this number. Returns
// false, without a call of `before`, if the system does not tell.
inline bool WithSlowCalls(long number, const std::function<void()>& before,
                          const std::function<void()>& body) {
  std::atomic<int> listener{-2};  // -1: the system has none
  std::atomic<bool> is_done{false};
  std::thread caller([&] {
    const sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{4, const_cast<sock_filter*>(rules)};
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener = static_cast<int>(
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
    if (listener >= 0) body();
    is_done = true;
  });
  while (listener == -2) std::this_thread::yield();
  while (listener >= 0 && !is_done) {
    pollfd ready{listener, POLLIN, 0};
    if (poll(&ready, 1, 20) <= 0) continue;
    seccomp_notif call{};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    before();
    seccomp_notif_resp answer{call.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
  caller.join();
  if (listener >= 0) close(listener);
  return listener >= 0;
}

}  // namespace kvcache::store
