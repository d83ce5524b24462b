// The pause after a failed attempt. It doubles with each failure, up to a limit. A success ends it.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <chrono>

namespace kvcache::store {

class RetryPause {
 public:
  using Clock = std::chrono::steady_clock;

  RetryPause(std::chrono::milliseconds first, std::chrono::milliseconds max)
      : first_(first), max_(max) {}

  // Begins a pause. Attempts that fail while it lasts began before it: they do not make it longer.
  void Failed(Clock::time_point now) {
    if (Left(now) > Clock::duration::zero()) return;
    pause_ = std::min(max_, std::max(first_, 2 * pause_));
    until_ = now + pause_;
  }
  void Worked() {
    pause_ = std::chrono::milliseconds(0);
    until_ = {};
  }
  // Returns how long nothing is to be tried; 0 without a pause.
  Clock::duration Left(Clock::time_point now) const {
    return std::max(Clock::duration::zero(), until_ - now);
  }

 private:
  std::chrono::milliseconds first_, max_;
  std::chrono::milliseconds pause_{0};
  Clock::time_point until_{};
};

}  // namespace kvcache::store
