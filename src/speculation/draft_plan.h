// How many drafts each text gets in a pass, so that the pass commits as many tokens per second as possible, from the
// measured time of passes by their tokens, and the measured acceptance by place. It is 0 if drafts do not pay. Many
// texts in a pass get few drafts or none: where each row costs its full price, a draft that may be wrong brings less than
// it costs.
//
// The plan explores. Now and then there is one draft more than seems best, or drafts of a text for which they do not pay,
// with pauses that get longer each time; or a pass without drafts, whose time may have changed. All such tries together
// take at most a hundredth of the time.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "kvcache/draft_rates.h"
#include "kvcache/drafter.h"
#include "speculation/pass_costs.h"

namespace kvcache {

// A text that may have drafts.
struct DraftShare {
  DraftRates* rates = nullptr;
  const BatchDrafter* batch = nullptr;  // of its drafter
  int max = 0;                          // drafts that the text has room for
  int drafts = 0;                       // set by DraftPlan::Share
};

class DraftPlan {
 public:
  // Sets the drafts of each share, at most `max` together. The pass has `tokens` other tokens, and
  // commits `certain` tokens without any draft. Throws std::bad_alloc.
  void Share(std::span<DraftShare> shares, int tokens, int certain, int max);

  // Counts a pass of `tokens` tokens, whether it has drafts or not.
  void CountPass(int tokens, double seconds);
  // Counts a pass whose time says nothing of its tokens' costs.
  void CountTime(double seconds);

  // The time of passes by their tokens.
  PassCosts& costs() { return costs_; }

 private:
  struct Next {
    double chance = 0.0;  // that the next draft is kept
    std::size_t share = 0;
    int place = 0;
    bool operator<(const Next& other) const { return chance < other.chance; }
  };

  // Drafts that are made together: those of a place are a pass of their own.
  struct Together {
    const BatchDrafter* batch = nullptr;
    std::array<int, DraftRates::kMax> texts{};  // by place
  };

  // The drafts that pay.
  struct Best {
    int drafts = 0;
    double gain = 1.0;  // tokens per second, in those without drafts
  };

  // Gives out the drafts that pay.
  Best ShareBest(std::span<DraftShare> shares, int tokens, int certain, int max);
  // Returns whether this pass goes without its drafts, so that its time is measured.
  bool IsPlain(const Best& best, int tokens);
  // Lets one text try: the rows of several would not be for free. It gets a draft more than the best, so that a rate or a
  // cost that was measured badly is measured again, or some although they do not pay. The pass has `tokens` tokens
  // without it, and room for `max` more.
  void Try(std::span<DraftShare> shares, int tokens, int max);
  // Returns how many drafts the text tries now, mostly none.
  static int DraftsToTry(const DraftShare& share, int max);
  // Returns the seconds that the drafter needs for one more draft.
  double SecondsOf(const DraftShare& share, int place);

  PassCosts costs_;
  int plans_ = 0;
  double saved_ = 0.0;      // seconds for tries
  double expected_ = 0.0;   // seconds of the pass that tries, as they were paid; 0: none does
  std::vector<Next> next_;  // a heap
  std::vector<std::size_t> granted_;  // shares, in the order of their drafts
  std::vector<Together> together_;
};

}  // namespace kvcache
