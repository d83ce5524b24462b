#include "backend/cuda/shim/block_runner-inl.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace kvcache::cuda::shim {
namespace {

constexpr std::int64_t kMaxDraw = std::int64_t{1} << 31;

}  // namespace

BlockRunner::BlockRunner()
    : fibers_(&RunThreads),
      fiber_of_(kMaxThreads),
      ready_(kMaxThreads),
      warps_(kMaxThreads / kLanes) {}

BlockRunner& BlockRunner::Get() {
  static thread_local BlockRunner runner;
  return runner;
}

void BlockRunner::BeginLaunch(const LaunchShape& launch) {
  current_runner = this;
  launch_ = launch;
  random_ = launch.seed | 1;
  failed_ = false;
  launch.memory->BeginLaunch();
  current.shared = launch.memory->shared();
  current.shared.bytes = launch.shared_bytes;
  current.global = launch.memory->global();
  current.pieces = launch.memory->pieces();
  current.args_low = reinterpret_cast<std::uintptr_t>(launch.args);
  current.args_bytes = launch.kernel->args_bytes;
  current.clock.launch = launch.memory->NextStamp();
  current.grid_x = static_cast<int>(launch.grid.x);
}

Status BlockRunner::Run(const LaunchShape& launch) {
  BeginLaunch(launch);
  const std::int64_t blocks = launch.grid.x * launch.grid.y * launch.grid.z;
  const auto draw = [&] { return Draw(static_cast<std::uint32_t>(std::min(blocks, kMaxDraw))); };
  // Blocks b, b + step, b + 2 step, …: `step` and their number have no common divisor, so all come.
  std::int64_t step = 1 + draw();
  while (std::gcd(step, blocks) != 1) ++step;
  std::int64_t block = draw();
  for (std::int64_t i = 0; i < blocks && !failed_; ++i) {
    RunBlock(block);
    block = (block + step) % blocks;
  }
  current.waited = true;
  current.stack_low = 0;
  current.stack_bytes = kEverything;
  if (!failed_) return Status::Ok();
  report_.where = PlaceOfAddress(report_.address);
  fibers_.Reset();
  return Status(StatusCode::kInternal,
                "kernel '" + std::string(launch.kernel->name) + "', " + TextOf(report_));
}

void BlockRunner::RunBlock(std::int64_t block) {
  const Grid& grid = launch_.grid;
  current.block_x = static_cast<int>(block % grid.x);
  current.block_y = static_cast<int>(block / grid.x % grid.y);
  current.block_z = static_cast<int>(block / grid.x / grid.y);
  current.clock.block = launch_.memory->NextStamp();
  const int threads = launch_.kernel->threads;
  std::fill_n(fiber_of_.begin(), threads, nullptr);
  std::fill_n(waited_.begin(), threads, false);
  for (int warp = 0; warp < threads / kLanes; ++warp) warps_[warp].arrived = 0;
  MakeAllReady();
  ended_ = 0;
  copies_.BeginBlock(threads);
  // All ones: a NaN in every float type.
  if (launch_.shared_bytes > 0) {
    std::memset(reinterpret_cast<void*>(current.shared.low), 0xff, launch_.shared_bytes);
  }
  Begin(DrawReady());
  fibers_.Switch(fibers_.main(), running_);
}

// All threads of the block are at its start or behind a barrier.
void BlockRunner::MakeAllReady() {
  ready_count_ = launch_.kernel->threads;
  std::iota(ready_.begin(), ready_.begin() + ready_count_, std::uint16_t{0});
  std::fill_n(waits_for_block_.begin(), ready_count_, false);
  at_barrier_ = 0;
  current.clock.barrier = launch_.memory->NextStamp();
  std::fill_n(warp_stamps_.begin(), ready_count_ / kLanes, current.clock.barrier);
}

// Makes `thread` the running one, on a fiber that runs threads from their beginning.
void BlockRunner::Begin(int thread) {
  fiber_of_[thread] = fibers_.Take();
  Become(thread);
}

// The entry of all fibers: runs the current thread, and after it others that have not begun.
void BlockRunner::RunThreads() {
  BlockRunner& runner = Running();
  for (;;) {
    runner.launch_.kernel->run(runner.launch_.args);
    if (!current.waited) {
      runner.Fail({.place = reinterpret_cast<std::uintptr_t>(runner.launch_.kernel->run) + 1,
                   .text = "the thread ends without WaitForEarlier"});
    }
    Fiber* const self = runner.running_;
    runner.fiber_of_[current.thread] = runner.fibers_.main();
    ++runner.ended_;
    const int next = runner.DrawReady();
    if (next >= 0 && runner.fiber_of_[next] == nullptr) {
      runner.fiber_of_[next] = self;
      runner.Become(next);
      continue;
    }
    if (next < 0 && runner.ended_ != runner.launch_.kernel->threads) runner.FailWaiting();
    runner.fibers_.Return(self);
    if (next >= 0) {
      runner.Become(next);
    } else {
      runner.running_ = runner.fibers_.main();
    }
    runner.fibers_.Switch(self, runner.running_);
  }
}

void BlockRunner::AdvanceWarp(int warp) {
  warp_stamps_[warp] = launch_.memory->NextStamp();
}

std::byte* BlockRunner::SharedBytes(std::size_t needed, std::uintptr_t place) {
  if (needed > launch_.shared_bytes) {
    Fail({.place = place,
          .text = "the kernel's shared memory has " + std::to_string(needed) +
                  " bytes, but the launch names " + std::to_string(launch_.shared_bytes)});
  }
  return reinterpret_cast<std::byte*>(current.shared.low);
}

void BlockRunner::FailWaiting() {
  Stop({.text = WaitingText()});
}

void BlockRunner::Fail(Report report) {
  report.thread = current.thread;
  report.other_block = StampOf(report.other) < current.clock.block;
  Stop(std::move(report));
}

void BlockRunner::Stop(Report report) {
  report.block[0] = current.block_x;
  report.block[1] = current.block_y;
  report.block[2] = current.block_z;
  report_ = std::move(report);
  failed_ = true;
  Fiber* const self = running_;
  running_ = fibers_.main();
  fibers_.Switch(self, running_);
  __builtin_unreachable();
}

}  // namespace kvcache::cuda::shim
