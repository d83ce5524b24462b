// Shares the drafts of one pass among the texts that generate, so that the pass commits as many tokens
// per second as possible. Many texts in a pass get few drafts or none: where each row costs its full
// price, a draft that may be wrong brings less than it costs.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kvcache/draft_rates.h"
#include "kvcache/drafter.h"
#include "speculation/pass_costs.h"
#include "speculation/try_budget.h"

namespace kvcache {

// A text that may have drafts.
struct DraftShare {
  DraftRates* rates = nullptr;
  const BatchDrafter* batch = nullptr;  // of its drafter
  int most = 0;                         // drafts that the text has room for
  int drafts = 0;                       // set by DraftPlan::Share
};

class DraftPlan {
 public:
  // Sets the drafts of each share, at most `most` together. The pass has `tokens` other tokens, and
  // commits `certain` tokens without any draft. Now and then a text gets drafts that do not pay, to notice when
  // they do again. Throws std::bad_alloc. REQUIRES: costs.known().
  void Share(std::span<DraftShare> shares, int tokens, int certain, int most,
             const PassCosts& costs);

  // Counts the seconds of a pass, whether it has drafts or not.
  void CountPass(double seconds) { tries_.Count(seconds); }

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
    std::array<int, DraftRates::kMost> texts{};  // by place
  };

  // Lets one text try: the rows of several would not be for free. The pass has `tokens` other tokens.
  void Try(std::span<DraftShare> shares, int tokens, int most, const PassCosts& costs);
  // Returns the seconds that the drafter needs for one more draft.
  double SecondsOf(const DraftShare& share, int place);

  std::vector<Next> next_;            // a heap
  std::vector<std::size_t> granted_;  // shares, in the order of their drafts
  std::vector<Together> together_;
  TryBudget tries_;
};

}  // namespace kvcache
