// Runs the blocks of a launch one after another, and the threads of a block as fibers: a thread runs
// until it waits for others, then one of those that can go on is drawn.
//
// Thread safety: each host thread has a runner of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/shim/async_copies.h"
#include "backend/cuda/shim/device_memory.h"
#include "backend/cuda/shim/fibers.h"
#include "backend/cuda/shim/kernel_calls.h"
#include "backend/cuda/shim/kernel_registry.h"
#include "backend/cuda/shim/report.h"
#include "backend/cuda/shim/thread_state.h"

namespace kvcache::cuda::shim {

struct LaunchShape {
  const KernelEntry* kernel = nullptr;
  Grid grid;
  std::size_t shared_bytes = 0;
  const void* args = nullptr;
  DeviceMemory* memory = nullptr;
  bool checks = true;      // of accesses to memory
  std::uint64_t seed = 1;  // chooses the order of blocks and threads
};

// The lanes of a warp in a function that all of them have to reach.
struct WarpMeeting {
  // What the last lane to come does for all.
  struct Kind {
    const char* name;
    void (*complete)(WarpMeeting& meeting);
  };
  int arrived = 0;
  std::uint32_t lanes = 0;  // that have arrived
  const Kind* kind = nullptr;
  Site site{};
  std::uint32_t given[32][10];
  std::uint32_t results[32][4];
};

class BlockRunner;
inline constinit thread_local BlockRunner* current_runner = nullptr;

class BlockRunner {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr int kLanes = 32;

  // The runner of this host thread.
  static BlockRunner& Get();
  // The same, for the threads of a kernel.
  static BlockRunner& Running() { return *current_runner; }

  // Runs all blocks.
  Status Run(const LaunchShape& launch);

  // What follows is called by the kernel's threads.
  std::byte* SharedBytes(std::size_t needed, std::uintptr_t place);
  void WaitForBlock(Site site);
  // Hands in the words of this lane, waits for the other lanes of the warp, and returns what the meeting left
  // for this lane.
  const std::uint32_t* MeetWarp(const WarpMeeting::Kind& kind, Site site,
                                std::initializer_list<std::uint32_t> words);
  // What was written before is seen by the warp's other threads from now on.
  void AdvanceWarp(int warp);
  // The running thread waits for earlier launches: they have ended, so this is only noted.
  void WaitForEarlier() {
    current.waited = waited_[static_cast<std::size_t>(current.thread)] = true;
  }
  AsyncCopies& copies() { return copies_; }
  // Stops the launch with an error. Does not return.
  [[noreturn]] void Fail(Report report);

 private:
  BlockRunner();

  static void RunThreads();
  void RunBlock(std::int64_t block);
  void BeginLaunch(const LaunchShape& launch);
  void Begin(int thread);
  void Become(int thread);
  void SwitchToReady();
  int DrawReady();
  void MakeAllReady();
  [[noreturn]] void FailWaiting();
  [[noreturn]] void FailAtBarrier(Site site);
  [[noreturn]] void FailInWarp(const WarpMeeting& meeting, const WarpMeeting::Kind& kind,
                               Site site);
  [[noreturn]] void Stop(Report report);
  std::string WaitingText() const;
  std::string MissingText(int first, std::uint32_t lanes) const;
  std::string PlaceOfAddress(std::uintptr_t address) const;
  std::uint32_t Draw(std::uint32_t below);

  LaunchShape launch_;
  std::uint64_t random_ = 1;
  bool failed_ = false;
  Report report_;

  Fibers fibers_;
  Fiber* running_ = nullptr;
  // Of each thread; null if it has not begun, main if it has ended.
  std::vector<Fiber*> fiber_of_;
  std::vector<std::uint16_t> ready_;
  int ready_count_ = 0;
  int ended_ = 0;
  int at_barrier_ = 0;
  std::array<bool, kMaxThreads> waits_for_block_{};
  std::array<bool, kMaxThreads> waited_{};  // for earlier launches
  Site barrier_site_{};
  std::vector<WarpMeeting> warps_;
  std::array<std::uint32_t, kMaxThreads / kLanes> warp_stamps_{};
  AsyncCopies copies_{kMaxThreads};
};

}  // namespace kvcache::cuda::shim
