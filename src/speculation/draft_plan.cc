#include "speculation/draft_plan.h"

#include <algorithm>

namespace kvcache {
namespace {

constexpr double kLeastGain = 1.02;    // of all drafts: the best of many guesses is a lucky one
constexpr double kLeastCost = 0.01;    // of a row, in passes without drafts
constexpr double kLeastChance = 0.02;  // of a draft that is worth looking at

}  // namespace

double DraftPlan::SecondsOf(const DraftShare& share, int place) {
  if (share.batch == nullptr) return share.rates->SecondsPerDraft();
  auto at = std::find_if(together_.begin(), together_.end(),
                         [&](const Together& each) { return each.batch == share.batch; });
  if (at == together_.end()) at = together_.insert(at, {.batch = share.batch});
  const int texts = at->texts[static_cast<std::size_t>(place)]++;
  return share.batch->Seconds(texts + 1) - (texts > 0 ? share.batch->Seconds(texts) : 0.0);
}

// The drafts that are likeliest to be kept come first. Passes cost in steps, so the best number is looked
// for among all.
void DraftPlan::Share(std::span<DraftShare> shares, int tokens, int certain, int most,
                      const PassCosts& costs) {
  next_.clear();
  granted_.clear();
  together_.clear();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i].drafts = 0;
    if (shares[i].most > 0) next_.push_back({shares[i].rates->Of(0), i, 0});
  }
  std::make_heap(next_.begin(), next_.end());
  double committed = certain;
  double drafting = 0.0;  // seconds of drafters
  const double plain = costs.Seconds(std::max(tokens, 1));
  double best_rate = kLeastGain * committed / plain;
  std::size_t best = 0;
  while (!next_.empty() && granted_.size() < static_cast<std::size_t>(most)) {
    std::pop_heap(next_.begin(), next_.end());
    Next& next = next_.back();
    if (next.chance < kLeastChance) break;  // and so are all others
    const DraftShare& share = shares[next.share];
    committed += next.chance;
    drafting += SecondsOf(share, next.place);
    granted_.push_back(next.share);
    const int rows = tokens + static_cast<int>(granted_.size());
    // A measurement that was disturbed would make rows look free.
    const double seconds =
        std::max(costs.Seconds(rows), plain * (1.0 + kLeastCost * (rows - tokens)));
    const double rate = committed / (seconds + drafting);
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
  const int drafts = static_cast<int>(best);
  Try(shares, tokens + drafts, most - drafts, costs);
}

void DraftPlan::Try(std::span<DraftShare> shares, int tokens, int most, const PassCosts& costs) {
  bool may_try = tries_.left();
  for (DraftShare& share : shares) {
    if (share.drafts > 0) {
      share.rates->Pay();
    } else if (may_try && share.most > 0 && most > 0) {
      share.drafts = std::min({share.rates->TryAgain(), share.most, most});
      if (share.drafts == 0) continue;
      may_try = false;
      const double each =
          share.batch != nullptr ? share.batch->Seconds(1) : share.rates->SecondsPerDraft();
      tries_.Spend(costs.Seconds(tokens + share.drafts) - costs.Seconds(tokens) +
                   share.drafts * each);
    }
  }
}

}  // namespace kvcache
