// What is known of a drafter: how often its drafts are right, by their place, what they cost, and when to
// try again after they did not pay.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>

namespace kvcache {

class DraftRates {
 public:
  static constexpr int kMax = 16;  // drafts of a round

  // Returns how often the draft at `place` is right if all before it are. A place that was not measured
  // is like the one before it. REQUIRES: 0 <= place < kMax.
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
  // Counts a round of drafts that pay, and returns whether to try one more than seems best. The pauses get longer each
  // time; they are short again once a try was right.
  bool TryDeeper();

 private:
  static constexpr int kFirstPause = 8;
  static constexpr int kLongestPause = 256;
  static constexpr int kFirstDeeperPause = 20;
  static constexpr int kLongestDeeperPause = 80;

  struct Rate {
    double accepted = 0.0;
    int rounds = 0;  // that it was measured in
  };

  std::array<Rate, kMax> rates_{};  // by place
  double seconds_ = 0.0;
  int pause_ = kFirstPause;
  int rounds_ = 0;  // without drafts, since the last with
  int deeper_pause_ = kFirstDeeperPause;
  int deeper_rounds_ = 0;   // since the last try of one more
  bool is_deeper_ = false;  // the next round has one more
};

}  // namespace kvcache
