// Shares the drafts of one pass among the texts that generate, so that the pass commits as many tokens
// per second as possible. Many texts in a pass get few drafts or none: where each row costs its full
// price, a draft that may be wrong brings less than it costs.
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
  const DraftRates* rates = nullptr;
  int most = 0;  // drafts that the text has room for
  // Set by DraftPlan::Share:
  int drafts = 0;
  double least_chance = 0.0;  // as for Drafter::SetLeastChance
};

class DraftPlan {
 public:
  // Sets the drafts of each share, at most `most` together, and the chance that they must have. The
  // pass has `tokens` other tokens, and commits `certain` tokens without any draft. Throws
  // std::bad_alloc. REQUIRES: costs.known().
  void Share(std::span<DraftShare> shares, int tokens, int certain, int most,
             const PassCosts& costs);

 private:
  struct Next {
    double chance = 0.0;  // that the next draft is kept
    std::size_t share = 0;
    int place = 0;
    bool operator<(const Next& other) const { return chance < other.chance; }
  };

  std::vector<Next> next_;            // a heap
  std::vector<std::size_t> granted_;  // shares, in the order of their drafts
};

}  // namespace kvcache
