// The time for drafts that do not pay and are tried all the same: a hundredth of that of all passes, however many
// texts there are.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>

namespace kvcache {

class TryBudget {
 public:
  // Counts a pass. At most the time of a pass is saved up.
  void Count(double seconds) { saved_ = std::min(saved_ + kShare * seconds, seconds); }
  // Returns whether drafts may be tried now.
  bool left() const { return saved_ > 0.0; }
  // Says how much longer a pass takes with the drafts that are tried. It may be more than what was saved.
  void Spend(double seconds) { saved_ -= std::max(seconds, 0.0); }

 private:
  static constexpr double kShare = 0.01;

  double saved_ = 0.0;  // seconds
};

}  // namespace kvcache
