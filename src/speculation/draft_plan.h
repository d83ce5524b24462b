// Shares the drafts of one pass among the texts that generate, so that the pass commits as many tokens
// per second as possible. Many texts in a pass get few drafts or none: where each row costs its full
// price, a draft that may be wrong brings less than it costs.
//
// A text whose drafts do not pay tries again now and then. The texts of a pass take turns, and the pauses
// between the tries of all get longer, so that many texts try no more than one.
//
// Thread safety: one thread at a time.
#pragma once

#include <span>
#include <vector>

#include "kvcache/draft_rates.h"
#include "speculation/pass_costs.h"

namespace kvcache {

// A text that may have drafts.
struct DraftShare {
  const DraftRates* rates = nullptr;  // of Share; Plan sets it
  int most = 0;                       // drafts that the text has room for
  int drafts = 0;                     // set by DraftPlan
  DraftRates* own = nullptr;          // of Plan: what is known of the text's drafter
  bool tries = false;                 // set by Plan: the drafts do not pay as far as is known
};

class DraftPlan {
 public:
  // Sets the drafts of each share, at most `most` together. The pass has `tokens` other tokens, and
  // commits `certain` tokens without any draft. Throws std::bad_alloc. REQUIRES: costs.known().
  void Share(std::span<DraftShare> shares, int tokens, int certain, int most,
             const PassCosts& costs);
  // As Share, and lets one of those without drafts try some now and then. Of a drafter that is not known, it
  // expects what the others do. REQUIRES: each share with `most` above 0 has `own`.
  void Plan(std::span<DraftShare> shares, int tokens, int certain, int most,
            const PassCosts& costs);
  // Counts a round of a text, of which the first `accepted` drafts were right.
  void Count(DraftRates& own, int drafted, int accepted, bool tried);

 private:
  void TryOne(std::span<DraftShare> shares, int left);

  struct Next {
    double chance = 0.0;  // that the next draft is kept
    std::size_t share = 0;
    int place = 0;
    bool operator<(const Next& other) const { return chance < other.chance; }
  };

  std::vector<Next> next_;            // a heap
  std::vector<std::size_t> granted_;  // shares, in the order of their drafts
  DraftRates all_;                    // of the drafters of all texts
  DraftRates tries_;                  // the pauses between tries of all texts
  std::size_t turn_ = 0;              // which share tries first
};

}  // namespace kvcache
