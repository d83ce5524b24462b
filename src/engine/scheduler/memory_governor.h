// The bytes that a cache may take: a fixed number, a share of the machine's memory, or the lesser.
//
// The machine's available memory is read again at intervals. The budget shrinks at once, and grows by
// a sixteenth of what is missing in each interval. It does not shrink below what one request needs, so
// that requests wait for each other and do not fail.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
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

  // `max`: bytes; 0: any number. `share`: of the memory that the cache takes and that is available; 0:
  // the machine's memory does not matter. A reading that fails or throws changes nothing.
  MemoryGovernor(
      std::int64_t max, double share,
      std::function<std::optional<std::int64_t>()> available = [] { return AvailableMemory(); })
      : max_(max > 0 ? max : kNoLimit), share_(share), available_(std::move(available)) {}
  // Changes `max`.
  void SetMax(std::int64_t bytes) { max_ = bytes > 0 ? bytes : kNoLimit; }
  // Sets what one request needs, in bytes. A smaller `max` stays as it is.
  void SetMin(std::int64_t bytes) { min_ = bytes; }

  // Returns whether there can be a budget.
  bool limits() const { return max_ != kNoLimit || share_ > 0; }
  // Returns the budget while the cache takes `held` bytes.
  std::int64_t Budget(std::int64_t held, Clock::time_point now) {
    if (share_ > 0 && (!read_ || now >= *read_ + kInterval)) {
      const std::int64_t intervals = read_ ? (now - *read_) / kInterval : 1;
      if (const std::optional<std::int64_t> available = Read()) {
        const double share = share_ * (static_cast<double>(*available) + static_cast<double>(held));
        const std::int64_t bytes =
            share < kMaxBytes ? static_cast<std::int64_t>(share) : kNoLimit - 1;
        Follow(std::max(min_, bytes), std::min(intervals, kMaxSteps));
      }
      read_ = now;
    }
    return std::min(budget_, max_);
  }

 private:
  static constexpr std::int64_t kMaxSteps = 512;  // as good as reaching any target
  static constexpr double kMaxBytes = 0x1.0p+62;

  std::optional<std::int64_t> Read() const {
    try {
      return available_();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  void Follow(std::int64_t target, std::int64_t steps) {
    if (budget_ == kNoLimit || target < budget_) {
      budget_ = target;
      return;
    }
    for (; steps > 0 && budget_ < target; --steps) {
      const std::int64_t missing = target - budget_;
      budget_ += missing / 16 + (missing % 16 != 0);
    }
  }

  std::int64_t max_;
  double share_;
  std::function<std::optional<std::int64_t>()> available_;
  std::int64_t min_ = 0;
  std::int64_t budget_ = kNoLimit;
  std::optional<Clock::time_point> read_;
};

}  // namespace kvcache
