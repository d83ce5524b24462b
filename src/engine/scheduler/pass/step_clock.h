// The seconds of a scope, by the scheduler's clock.
//
// Thread safety: that of the clock.
#pragma once

#include <functional>

#include "base/seconds_since.h"

namespace kvcache {

// Adds the seconds of its life to a sum. `clock` returns seconds; empty: the system's clock.
class AddSeconds {
 public:
  AddSeconds(const std::function<double()>& clock, double& sum)
      : clock_(clock), sum_(sum), start_(Now()) {}
  ~AddSeconds() { sum_ += Now() - start_; }
  AddSeconds(const AddSeconds&) = delete;
  AddSeconds& operator=(const AddSeconds&) = delete;

 private:
  double Now() const { return clock_ ? clock_() : SecondsSince({}); }

  const std::function<double()>& clock_;
  double& sum_;
  const double start_;
};

}  // namespace kvcache
