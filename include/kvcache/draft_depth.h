// How many tokens to draft: as many as give the most committed tokens per second, from the measured time
// of a pass by its tokens, and the measured acceptance by place. 0 if drafts do not pay.
//
// The time of a number of drafts that was not used for 256 rounds counts as not measured. So a number that was slow once,
// on a busy machine, is tried again, and so is one that was never used because a smaller one paid.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>

#include "kvcache/draft_rates.h"

namespace kvcache {

class DraftDepth {
 public:
  static constexpr int kMost = DraftRates::kMost;

  // Returns the number of drafts to ask for. Now and then it is above 0 although drafts did not pay, to
  // notice when they do again; the pauses get longer each time.
  int Next();
  // Counts a round: a pass over the current token and `drafted` drafts, of which the first `accepted`
  // were right. The seconds include those of the drafter.
  void Count(int drafted, int accepted, double seconds);

  // How often its drafts are right.
  DraftRates& rates() { return rates_; }

 private:
  // Returns whether a pass with so many drafts was measured, and not too long ago.
  bool IsKnown(std::size_t drafted) const;
  // Returns the expected seconds of a pass with so many drafts, on a line through the nearest that are known.
  // REQUIRES: a pass without drafts was measured.
  double Seconds(int drafted) const;
  int Best() const;

  std::array<double, kMost + 1> seconds_{};  // by number of drafts; 0: not measured
  std::array<int, kMost + 1> measured_{};    // the round in which it was last
  int rounds_ = 0;
  DraftRates rates_;
  int rounds_with_drafts_ = 0;
};

}  // namespace kvcache
