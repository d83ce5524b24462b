// The functions of BlockRunner that switch between threads. They are inlined into those that kernels call: a
// switch makes the processor mispredict each return behind it.
#pragma once

#include <algorithm>
#include <cstring>

#include "backend/cuda/shim/block_runner.h"

namespace kvcache::cuda::shim {

inline bool SameSite(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

inline std::uint32_t BlockRunner::Draw(std::uint32_t below) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<std::uint32_t>(((random_ >> 32) * below) >> 32);
}

// The running thread is `thread` from now on.
inline void BlockRunner::Become(int thread) {
  current.thread = thread;
  current.clock.warp = warp_stamps_[thread / kLanes];
  current.clock.mine =
      (Record{current.clock.warp} << 32) | (static_cast<Record>(thread) << kThreadShift);
  current.waited = waited_[thread];
  running_ = fiber_of_[thread];
  if (!launch_.checks) return;
  current.stack_low = reinterpret_cast<std::uintptr_t>(running_->stack);
  current.stack_bytes = Fibers::kStackBytes;
}

// Returns a thread that can go on, or -1.
inline int BlockRunner::DrawReady() {
  if (ready_count_ == 0) return -1;
  const std::uint32_t at = Draw(static_cast<std::uint32_t>(ready_count_));
  const int thread = ready_[at];
  ready_[at] = ready_[--ready_count_];
  return thread;
}

// Lets another thread run; returns when this one is drawn.
[[gnu::always_inline]] inline void BlockRunner::SwitchToReady() {
  const int next = DrawReady();
  if (next < 0) FailWaiting();
  Fiber* const self = running_;
  if (fiber_of_[next] == nullptr) {
    Begin(next);
  } else {
    Become(next);
  }
  if (running_ != self) fibers_.Switch(self, running_);
}

[[gnu::always_inline]] inline void BlockRunner::WaitForBlock(Site site) {
  if (at_barrier_ == 0) {
    barrier_site_ = site;
  } else if (!SameSite(barrier_site_, site)) {
    FailAtBarrier(site);
  }
  waits_for_block_[current.thread] = true;
  if (++at_barrier_ == launch_.kernel->threads) MakeAllReady();
  SwitchToReady();
}

[[gnu::always_inline]] inline const std::uint32_t* BlockRunner::MeetWarp(
    const WarpMeeting::Kind& kind, Site site, std::initializer_list<std::uint32_t> words) {
  const int warp = current.thread / kLanes;
  const int lane = current.thread % kLanes;
  WarpMeeting& meeting = warps_[warp];
  if (meeting.arrived == 0) {
    meeting.kind = &kind;
    meeting.site = site;
    meeting.lanes = 0;
  } else if (meeting.kind != &kind || !SameSite(meeting.site, site)) {
    FailInWarp(meeting, kind, site);
  }
  std::copy(words.begin(), words.end(), meeting.given[lane]);
  meeting.lanes |= 1U << lane;
  if (++meeting.arrived == kLanes) {
    meeting.arrived = 0;
    kind.complete(meeting);
    for (int i = 0; i < kLanes; ++i) {
      ready_[ready_count_++] = static_cast<std::uint16_t>(warp * kLanes + i);
    }
  }
  SwitchToReady();
  return meeting.results[lane];
}

}  // namespace kvcache::cuda::shim
