#include "support/counting_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::int64_t> allocations{0};
std::atomic<int> until_failure{0};  // 0: none fails
}  // namespace

// Not inlined, because the compiler would then warn of a mismatched pair, operator new and free.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (until_failure.load(std::memory_order_relaxed) > 0 &&
      until_failure.fetch_sub(1, std::memory_order_relaxed) == 1) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(size != 0 ? size : 1); memory != nullptr) return memory;
  throw std::bad_alloc();
}
// The temporary buffers of std::stable_sort use this form. A sanitizer's own version of it would
// not match the operator delete below.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace kvcache::testing {

std::int64_t AllocationCount() {
  return allocations.load(std::memory_order_relaxed);
}
void FailAllocation(int n) {
  until_failure.store(n, std::memory_order_relaxed);
}
bool AllocationFailurePending() {
  return until_failure.load(std::memory_order_relaxed) > 0;
}

}  // namespace kvcache::testing
