#include "speculation/draft_plan.h"

#include <algorithm>
#include <utility>

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
  double best_rate = committed / costs.Seconds(std::max(tokens, 1));
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
}

// As long as nothing is known of any drafter, one text finds out.
void DraftPlan::Plan(std::span<DraftShare> shares, int tokens, int certain, int most,
                     const PassCosts& costs) {
  bool is_asked = false;
  for (DraftShare& share : shares) {
    share.tries = false;
    if (share.most < 1) continue;
    const bool is_known = share.own->measured() || all_.measured();
    if (!is_known && std::exchange(is_asked, true)) share.most = 0;
    share.rates = share.own->measured() ? share.own : &all_;
  }
  Share(shares, tokens, certain, most, costs);
  int left = most;
  for (const DraftShare& share : shares) left -= share.drafts;
  TryOne(shares, left);
}

void DraftPlan::TryOne(std::span<DraftShare> shares, int left) {
  bool any = false;
  for (DraftShare& share : shares) {
    if (share.most < 1) continue;
    if (share.drafts > 0) {
      share.own->Pay();
    } else {
      share.own->Rest();
      any = true;
    }
  }
  if (!any || left < 1) return;
  tries_.Rest();
  if (!tries_.IsDue()) return;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    DraftShare& share = shares[(turn_ + i) % shares.size()];
    if (share.most < 1 || share.drafts > 0 || !share.own->IsDue()) continue;
    share.drafts = std::min({share.own->Try(), share.most, left});
    share.tries = true;
    (void)tries_.Try();
    turn_ = (turn_ + i + 1) % shares.size();
    return;
  }
}

void DraftPlan::Count(DraftRates& own, int drafted, int accepted, bool tried) {
  own.Count(drafted, accepted);
  all_.Count(drafted, accepted);
  if (tried) tries_.Count(drafted, accepted);
}

}  // namespace kvcache
