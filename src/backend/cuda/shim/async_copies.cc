#include "backend/cuda/shim/async_copies.h"

#include <cstring>

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
  BlockRunner::Get().copies().Wait(
      current.thread, static_cast<std::uint32_t>(pending),
      [](const AsyncCopies::Copy& copy) { std::memcpy(copy.shared, copy.global, 16); });
}

}  // namespace shim

void AsyncCopy16(void* shared, const void* global) {
  shim::BlockRunner::Get().copies().Add(shim::current.thread, shared, global);
}

void AsyncCommit() {
  shim::BlockRunner::Get().copies().Commit(shim::current.thread);
}

}  // namespace kvcache::cuda
