#include "backend/cuda/shim/block_runner.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvcache::cuda::shim {
namespace {

constexpr std::size_t kSharedAlignment = 128;

}  // namespace

BlockRunner::BlockRunner()
    : fibers_(&RunThreads),
      fiber_of_(kMaxThreads),
      ready_(kMaxThreads),
      warps_(kMaxThreads / 32),
      shared_memory_(kMaxSharedBytes + kSharedAlignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(shared_memory_.data());
  shared_ = shared_memory_.data() + (kSharedAlignment - address % kSharedAlignment);
}

BlockRunner& BlockRunner::Get() {
  static thread_local BlockRunner runner;
  return runner;
}

std::uint32_t BlockRunner::Draw(std::uint32_t below) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<std::uint32_t>(((random_ >> 32) * below) >> 32);
}

Status BlockRunner::Run(const LaunchShape& launch, std::uint64_t seed) {
  launch_ = launch;
  random_ = seed | 1;
  error_.clear();
  const std::int64_t blocks = launch.grid.x * launch.grid.y * launch.grid.z;
  // Blocks b, b + step, b + 2 step, …: `step` and their number have no common divisor, so all come.
  std::int64_t step = 1 + static_cast<std::int64_t>(Draw(static_cast<std::uint32_t>(blocks)));
  while (std::gcd(step, blocks) != 1) ++step;
  std::int64_t block = Draw(static_cast<std::uint32_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    RunBlock(block);
    if (!error_.empty()) {
      fibers_.Reset();
      return Status(StatusCode::kInternal, std::move(error_));
    }
    block = (block + step) % blocks;
  }
  return Status::Ok();
}

void BlockRunner::RunBlock(std::int64_t block) {
  const Grid& grid = launch_.grid;
  current.grid_x = static_cast<int>(grid.x);
  current.block_x = static_cast<int>(block % grid.x);
  current.block_y = static_cast<int>(block / grid.x % grid.y);
  current.block_z = static_cast<int>(block / grid.x / grid.y);
  const int threads = launch_.kernel->threads;
  std::fill_n(fiber_of_.begin(), threads, nullptr);
  for (int warp = 0; warp < threads / 32; ++warp) warps_[warp].arrived = 0;
  std::iota(ready_.begin(), ready_.begin() + threads, std::uint16_t{0});
  ready_count_ = threads;
  ended_ = 0;
  at_barrier_ = 0;
  copies_.BeginBlock(threads);
  // All ones: a NaN in every float type.
  if (launch_.shared_bytes > 0) std::memset(shared_, 0xff, launch_.shared_bytes);
  Begin(DrawReady());
  fibers_.Switch(fibers_.main(), running_);
}

// Makes `thread` the running one on a fiber that runs threads from their beginning.
void BlockRunner::Begin(int thread) {
  current.thread = thread;
  running_ = fibers_.Take();
  fiber_of_[thread] = running_;
}

// The entry of all fibers: runs the current thread, and after it others that have not begun.
void BlockRunner::RunThreads() {
  BlockRunner& runner = Get();
  for (;;) {
    runner.launch_.kernel->run(runner.launch_.args);
    ++runner.ended_;
    const int next = runner.DrawReady();
    if (next >= 0 && runner.fiber_of_[next] == nullptr) {
      runner.fiber_of_[next] = runner.running_;
      current.thread = next;
      continue;
    }
    if (next < 0 && runner.ended_ != runner.launch_.kernel->threads) runner.FailWaiting();
    Fiber* const self = runner.running_;
    runner.fibers_.Return(self);
    if (next >= 0) current.thread = next;
    runner.running_ = next >= 0 ? runner.fiber_of_[next] : runner.fibers_.main();
    runner.fibers_.Switch(self, runner.running_);
  }
}

// Returns a thread that can go on, or -1.
int BlockRunner::DrawReady() {
  if (ready_count_ == 0) return -1;
  const std::uint32_t at = Draw(static_cast<std::uint32_t>(ready_count_));
  const int thread = ready_[at];
  ready_[at] = ready_[--ready_count_];
  return thread;
}

// Lets another thread run; returns when this one is drawn.
void BlockRunner::SwitchToReady() {
  const int next = DrawReady();
  if (next < 0) FailWaiting();
  if (next == current.thread) return;
  const int thread = current.thread;
  Fiber* const self = running_;
  if (fiber_of_[next] == nullptr) {
    Begin(next);
  } else {
    current.thread = next;
    running_ = fiber_of_[next];
  }
  fibers_.Switch(self, running_);
  current.thread = thread;
}

void BlockRunner::WaitForBlock(Site site) {
  if (at_barrier_ == 0) barrier_site_ = site;
  if (barrier_site_.line != site.line || std::strcmp(barrier_site_.file, site.file) != 0) {
    Fail("threads of a block wait at two barriers");
  }
  if (++at_barrier_ == launch_.kernel->threads) {
    at_barrier_ = 0;
    std::iota(ready_.begin(), ready_.begin() + launch_.kernel->threads, std::uint16_t{0});
    ready_count_ = launch_.kernel->threads;
  }
  SwitchToReady();
}

const std::uint32_t* BlockRunner::MeetWarp(Complete complete, Site site,
                                           std::initializer_list<std::uint32_t> words) {
  WarpMeeting& meeting = warps_[current.thread / 32];
  const int lane = current.thread % 32;
  if (meeting.arrived == 0) {
    meeting.complete = complete;
    meeting.site = site;
  } else if (meeting.complete != complete || meeting.site.line != site.line ||
             std::strcmp(meeting.site.file, site.file) != 0) {
    Fail("lanes of a warp wait at two places");
  }
  std::copy(words.begin(), words.end(), meeting.given[lane]);
  if (++meeting.arrived == 32) {
    meeting.arrived = 0;
    complete(meeting);
    for (int i = 0; i < 32; ++i) {
      ready_[ready_count_++] = static_cast<std::uint16_t>(current.thread - lane + i);
    }
  }
  SwitchToReady();
  return meeting.results[lane];
}

std::byte* BlockRunner::SharedBytes(std::size_t needed) {
  if (needed > launch_.shared_bytes) Fail("shared memory is smaller than the kernel's struct");
  return shared_;
}

void BlockRunner::FailWaiting() {
  Fail("threads wait for others that never come");
}

void BlockRunner::Fail(std::string message) {
  error_ = "kernel '" + std::string(launch_.kernel->name) + "': " + message;
  Fiber* const self = running_;
  running_ = fibers_.main();
  fibers_.Switch(self, running_);
  __builtin_unreachable();
}

}  // namespace kvcache::cuda::shim
