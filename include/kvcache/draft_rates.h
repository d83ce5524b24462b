// What is known of a drafter: how often its drafts are right, by their place, what they cost, and when to
// try again after they did not pay.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>

namespace kvcache {

class DraftRates {
 public:
  static constexpr int kMost = 16;  // drafts of a round

  // A place that had no draft for so many rounds counts as not measured.
  static constexpr int kForgetRounds = 256;

  // Returns how often the draft at `place` is right if all before it are. A place that was not measured
  // is like the one before it. REQUIRES: 0 <= place < kMost.
  double Of(int place) const;
  // Counts a round of which the first `accepted` drafts were right.
  void Count(int drafted, int accepted);

  // Returns the drafter's own time for a draft, and counts what a proposal took. A proposal of nothing is
  // not counted.
  double SecondsPerDraft() const { return seconds_; }
  void CountProposal(int drafted, double seconds);

  // Counts a round for which drafts do not pay, and returns how many to try all the same: mostly none.
  // The pauses between the tries get longer each time.
  int TryAgain();
  // Says that drafts pay.
  void Pay() { rounds_ = 0; }

 private:
  static constexpr int kFirstPause = 8;
  static constexpr int kLongestPause = 256;

  struct Rate {
    double accepted = 0.0;
    int rounds = 0;  // that it was measured in
    int last = 0;    // the last of them
  };

  // Returns whether a place was measured, and not too long ago. The first one stays known.
  bool IsKnown(std::size_t place) const {
    const bool is_new = place == 0 || counted_ - rates_[place].last <= kForgetRounds;
    return rates_[place].rounds > 0 && is_new;
  }

  std::array<Rate, kMost> rates_{};  // by place
  double seconds_ = 0.0;
  int counted_ = 0;  // rounds
  int pause_ = kFirstPause;
  int rounds_ = 0;  // without drafts, since the last with
};

}  // namespace kvcache
