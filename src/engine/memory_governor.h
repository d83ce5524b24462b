// The bytes that a cache may take: a fixed number, a share of the machine's memory, or the lesser.
//
// The machine's available memory is read again at intervals. The budget shrinks at once, and grows by
// a sixteenth of what is missing at a time.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "platform/system_memory.h"

namespace kvcache {

class MemoryGovernor {
 public:
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  static constexpr std::chrono::milliseconds kInterval{100};
  using Clock = std::chrono::steady_clock;

  // `most`: bytes; 0: any number. `share`: of the memory that the cache takes and that is available; 0:
  // the machine's memory does not matter.
  MemoryGovernor(
      std::int64_t most, double share,
      std::function<std::optional<std::int64_t>()> available = [] { return AvailableMemory(); })
      : most_(most > 0 ? most : kNoLimit), share_(share), available_(std::move(available)) {}

  // Returns whether there can be a budget.
  bool limits() const { return most_ != kNoLimit || share_ > 0; }
  // Returns the budget while the cache takes `held` bytes.
  std::int64_t Budget(std::int64_t held, Clock::time_point now) {
    if (share_ > 0 && (!read_ || now >= *read_ + kInterval)) {
      const std::optional<std::int64_t> available = available_();
      if (available)
        Follow(static_cast<std::int64_t>(share_ * static_cast<double>(*available + held)));
      read_ = now;
    }
    return budget_ < most_ ? budget_ : most_;
  }

 private:
  void Follow(std::int64_t target) {
    if (budget_ == kNoLimit || target < budget_) {
      budget_ = target;
    } else {
      budget_ += (target - budget_ + 15) / 16;
    }
  }

  std::int64_t most_;
  double share_;
  std::function<std::optional<std::int64_t>()> available_;
  std::int64_t budget_ = kNoLimit;
  std::optional<Clock::time_point> read_;
};

}  // namespace kvcache
