// Runs the blocks of a launch one after another, and the threads of a block as fibers: a thread runs
// until it waits for others, then one of those that can go on is drawn.
//
// Thread safety: each host thread has a runner of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/shim/async_copies.h"
#include "backend/cuda/shim/fibers.h"
#include "backend/cuda/shim/kernel_calls.h"
#include "backend/cuda/shim/kernel_registry.h"
#include "backend/cuda/shim/thread_state.h"

namespace kvcache::cuda::shim {

struct LaunchShape {
  const KernelEntry* kernel = nullptr;
  Grid grid;
  std::size_t shared_bytes = 0;
  const void* args = nullptr;
};

// The lanes of a warp in a function that all of them have to reach.
struct WarpMeeting {
  int arrived = 0;
  void (*complete)(WarpMeeting&) = nullptr;
  Site site{};
  std::uint32_t given[32][10];
  std::uint32_t results[32][4];
};

class BlockRunner {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr std::size_t kMaxSharedBytes = std::size_t{228} << 10;

  // The runner of this host thread.
  static BlockRunner& Get();

  // Runs all blocks; `seed` chooses the order of blocks and threads.
  Status Run(const LaunchShape& launch, std::uint64_t seed);

  // Called by the kernel's threads.
  std::byte* SharedBytes(std::size_t needed);
  void WaitForBlock(Site site);
  // Hands in the words of this lane, waits for the other lanes of the warp, and returns what `complete` left
  // for this lane. The last lane to come calls `complete`.
  using Complete = void (*)(WarpMeeting& meeting);
  const std::uint32_t* MeetWarp(Complete complete, Site site,
                                std::initializer_list<std::uint32_t> words);
  AsyncCopies& copies() { return copies_; }
  // Stops the launch with an error. Does not return.
  [[noreturn]] void Fail(std::string message);

 private:
  BlockRunner();

  static void RunThreads();
  void RunBlock(std::int64_t block);
  void Begin(int thread);
  void SwitchToReady();
  int DrawReady();
  [[noreturn]] void FailWaiting();
  std::uint32_t Draw(std::uint32_t below);

  LaunchShape launch_;
  std::uint64_t random_ = 1;
  std::string error_;

  Fibers fibers_;
  Fiber* running_ = nullptr;
  std::vector<Fiber*> fiber_of_;  // of each thread; null if it has not begun
  std::vector<std::uint16_t> ready_;
  int ready_count_ = 0;
  int ended_ = 0;
  int at_barrier_ = 0;
  Site barrier_site_{};
  std::vector<WarpMeeting> warps_;
  AsyncCopies copies_{kMaxThreads};
  std::vector<std::byte> shared_memory_;
  std::byte* shared_ = nullptr;
};

}  // namespace kvcache::cuda::shim
