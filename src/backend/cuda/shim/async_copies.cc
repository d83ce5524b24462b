#include "backend/cuda/shim/async_copies.h"

#include <cstring>

#include "backend/cuda/shim/accesses.h"
#include "backend/cuda/shim/block_runner.h"
#include "backend/cuda/shim/kernel_calls.h"
#include "backend/cuda/shim/thread_state.h"

namespace kvcache::cuda {
namespace shim {

void AsyncCopies::BeginBlock(int threads) {
  for (int thread = 0; thread < threads; ++thread) {
    queues_[thread].copies.clear();
    queues_[thread].landed = 0;
    queues_[thread].groups = 0;
  }
}

void AsyncCopies::Add(int thread, void* shared, const void* global) {
  queues_[thread].copies.push_back({shared, global, queues_[thread].groups});
}

void AsyncWait(int pending) {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  BlockRunner::Running().copies().Wait(
      current.thread, static_cast<std::uint32_t>(pending), [place](const AsyncCopies::Copy& copy) {
        CopyLands(reinterpret_cast<std::uintptr_t>(copy.shared),
                  reinterpret_cast<std::uintptr_t>(copy.global), place);
        std::memcpy(copy.shared, copy.global, 16);
      });
}

}  // namespace shim

void AsyncCopy16(void* shared, const void* global) {
  shim::CheckCopyBegins(reinterpret_cast<std::uintptr_t>(shared),
                        reinterpret_cast<std::uintptr_t>(global),
                        reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
  shim::BlockRunner::Running().copies().Add(shim::current.thread, shared, global);
}

void AsyncCommit() {
  shim::BlockRunner::Running().copies().Commit(shim::current.thread);
}

}  // namespace kvcache::cuda
