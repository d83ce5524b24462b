#include "backend/cuda/shim/fibers.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace kvcache::cuda::shim {
namespace {

constexpr std::size_t kColorBytes = 320;

}  // namespace

Fibers::~Fibers() {
  for (const auto& fiber : all_) munmap(fiber->stack, kStackBytes);
}

Fiber* Fibers::Take() {
  if (free_.empty()) {
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
      std::fputs("shim: no memory for the stack of a thread\n", stderr);
      std::abort();
    }
    // A thread that recurses without end stops there instead of in another thread's stack.
    mprotect(stack, 4096, PROT_NONE);
    all_.push_back(std::make_unique<Fiber>());
    all_.back()->stack = static_cast<std::byte*>(stack);
    // Tops at the same place of a page would share a few sets of the processor's caches.
    all_.back()->top = all_.back()->stack + kStackBytes - all_.size() % 64 * kColorBytes;
    Begin(*all_.back());
    free_.reserve(all_.size());
    return all_.back().get();
  }
  Fiber* const fiber = free_.back();
  free_.pop_back();
  return fiber;
}

void Fibers::Reset() {
  free_.clear();
  for (const auto& fiber : all_) {
    Begin(*fiber);
    free_.push_back(fiber.get());
  }
}

const Fiber* Fibers::FindStack(std::uintptr_t address) const {
  for (const auto& fiber : all_) {
    if (address - reinterpret_cast<std::uintptr_t>(fiber->stack) < kStackBytes) return fiber.get();
  }
  return nullptr;
}

void Fibers::Begin(Fiber& fiber) {
  // The context's first argument is the sender; the entry is found through it.
  static thread_local Entry entry = nullptr;
  entry = entry_;
  fiber.context = boost::context::detail::make_fcontext(
      fiber.top, static_cast<std::size_t>(fiber.top - fiber.stack),
      [](boost::context::detail::transfer_t from) {
        KeepPlace(from);
        entry();
      });
}

}  // namespace kvcache::cuda::shim
