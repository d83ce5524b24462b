#include "speculation/draft_plan.h"

#include <algorithm>

namespace kvcache {

// The drafts that are likeliest to be kept come first. Passes cost in steps, so the best number is looked
// for among all.
void DraftPlan::Share(std::span<DraftShare> shares, int tokens, int certain, int most,
                      const PassCosts& costs) {
  next_.clear();
  granted_.clear();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i].drafts = 0;
    if (shares[i].most > 0) next_.push_back({shares[i].rates->Of(0), i, 0});
  }
  std::make_heap(next_.begin(), next_.end());
  double committed = certain;
  double drafting = 0.0;  // seconds of drafters
  const double rate_without = committed / costs.Seconds(std::max(tokens, 1));
  double best_rate = rate_without;
  std::size_t best = 0;
  while (!next_.empty() && granted_.size() < static_cast<std::size_t>(most)) {
    std::pop_heap(next_.begin(), next_.end());
    Next& next = next_.back();
    const DraftShare& share = shares[next.share];
    committed += next.chance;
    drafting += share.rates->SecondsPerDraft();
    granted_.push_back(next.share);
    const int rows = tokens + static_cast<int>(granted_.size());
    const double rate = committed / (costs.Seconds(rows) + drafting);
    if (rate > best_rate) {
      best_rate = rate;
      best = granted_.size();
    }
    if (++next.place < std::min(share.most, DraftRates::kMost)) {
      next.chance *= share.rates->Of(next.place);
      std::push_heap(next_.begin(), next_.end());
    } else {
      next_.pop_back();
    }
  }
  for (std::size_t i = 0; i < best; ++i) ++shares[granted_[i]].drafts;
  const int drafts = std::max(static_cast<int>(best), 1);
  const double row = (costs.Seconds(tokens + drafts) - costs.Seconds(std::max(tokens, 1))) / drafts;
  for (DraftShare& share : shares) {
    if (share.rates == nullptr) continue;
    // Drafters end before drafts that are too unlikely: the rate lies between the two.
    share.least_chance =
        LeastChanceToPay((rate_without + best_rate) / 2, row + share.rates->SecondsPerDraft());
  }
}

}  // namespace kvcache
