#include "platform/mapped_file_faults.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace kvcache {
namespace {

struct MappedRange {
  const std::byte* begin;
  const std::byte* end;
  std::string message;  // made before it is needed: a signal handler may not allocate
};

// A handler reads it at any moment, so an entry appears and vanishes whole.
std::array<std::atomic<const MappedRange*>, 64> ranges{};

std::atomic<void (*)()> fatal_hook{nullptr};

// Where the thread continues after a failed read; null outside RunGuarded.
thread_local sigjmp_buf* guard = nullptr;

void OnBusError(int signal, siginfo_t* info, void* /*context*/) {
  if (info->si_code <= 0) {  // sent by a process: no read is repeated
    (void)std::signal(signal, SIG_DFL);
    (void)std::raise(signal);
    return;
  }
  LeaveGuarded();
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  for (const auto& slot : ranges) {
    const MappedRange* const range = slot.load(std::memory_order_acquire);
    if (range == nullptr || address < range->begin || address >= range->end) continue;
    if (void (*const hook)() = fatal_hook.load()) hook();
    (void)!write(STDERR_FILENO, range->message.data(), range->message.size());
    _exit(1);
  }
  (void)std::signal(signal, SIG_DFL);  // the read is repeated and ends the process
}

}  // namespace

void ReportCutFiles() {
  struct sigaction action {};
  action.sa_sigaction = &OnBusError;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;  // a guard is left without an end of the handler
  (void)sigemptyset(&action.sa_mask);
  (void)sigaction(SIGBUS, &action, nullptr);
}

bool RunGuarded(void (*code)(void*), void* argument) {
  sigjmp_buf here;
  sigjmp_buf* const outer = guard;
  if (sigsetjmp(here, 0) != 0) {  // NOLINT(cert-err52-cpp): nothing else leaves a failed read
    guard = outer;
    return false;
  }
  guard = &here;
  code(argument);
  guard = outer;
  return true;
}

void LeaveGuarded() {
  if (guard != nullptr) siglongjmp(*guard, 1);  // NOLINT(cert-err52-cpp)
}

void SetFatalHook(void (*hook)()) {
  fatal_hook.store(hook);
}

void AddMappedRange(std::span<const std::byte> bytes, const std::string& path) {
  if (bytes.empty()) return;
  const auto* range =
      new MappedRange{bytes.data(), bytes.data() + bytes.size(),
                      "kvcache: " + OneLine(path) + " was cut short while it was in use\n"};
  for (auto& slot : ranges) {
    const MappedRange* free = nullptr;
    if (slot.compare_exchange_strong(free, range, std::memory_order_acq_rel)) return;
  }
  delete range;
}

void RemoveMappedRange(std::span<const std::byte> bytes) {
  for (auto& slot : ranges) {
    const MappedRange* range = slot.load(std::memory_order_acquire);
    if (range == nullptr || range->begin != bytes.data()) continue;
    slot.store(nullptr, std::memory_order_release);
    delete range;
    return;
  }
}

}  // namespace kvcache
