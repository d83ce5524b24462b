#include "speculation/draft_plan.h"

#include <algorithm>

namespace kvcache {
namespace {

constexpr double kMinGain = 1.02;    // of all drafts: the best of many guesses is a lucky one
constexpr double kMinCost = 0.01;    // of a row, in passes without drafts
constexpr double kMinChance = 0.02;  // of a draft that is worth looking at
constexpr double kTryShare = 0.01;   // of the time, for tries
constexpr int kWithoutDrafts = 64;   // plans between two without drafts, at least

}  // namespace

double DraftPlan::SecondsOf(const DraftShare& share, int place) {
  if (share.batch == nullptr) return share.rates->SecondsPerDraft();
  auto at = std::find_if(together_.begin(), together_.end(),
                         [&](const Together& each) { return each.batch == share.batch; });
  if (at == together_.end()) at = together_.insert(at, {.batch = share.batch});
  const int texts = at->texts[static_cast<std::size_t>(place)]++;
  return share.batch->Seconds(texts + 1) - (texts > 0 ? share.batch->Seconds(texts) : 0.0);
}

// A try that takes longer than what was known is paid for as well.
void DraftPlan::CountPass(int tokens, double seconds) {
  if (expected_ > 0.0) saved_ -= std::max(seconds - expected_, 0.0);
  expected_ = 0.0;
  costs_.Count(tokens, seconds);
  CountTime(seconds);
}

// At most the time of a pass is saved up.
void DraftPlan::CountTime(double seconds) {
  saved_ = std::min(saved_ + kTryShare * seconds, seconds);
}

void DraftPlan::Share(std::span<DraftShare> shares, int tokens, int certain, int max) {
  for (DraftShare& share : shares) share.drafts = 0;
  if (!costs_.known()) return;
  ++plans_;
  const Best best = ShareBest(shares, tokens, certain, max);
  if (IsPlain(best, tokens)) {
    for (DraftShare& share : shares) share.drafts = 0;
  } else {
    Try(shares, tokens + best.drafts, max - best.drafts);
  }
}

// A pass without drafts takes the time of its tokens; with them, its tokens would take less.
bool DraftPlan::IsPlain(const Best& best, int tokens) {
  if (best.drafts == 0 || plans_ < kWithoutDrafts || saved_ <= 0.0) return false;
  plans_ = 0;
  saved_ -= costs_.Seconds(std::max(tokens, 1)) * (1.0 - 1.0 / best.gain);
  return true;
}

// The drafts that are likeliest to be kept come first. Passes cost in steps, so the best number is looked
// for among all.
DraftPlan::Best DraftPlan::ShareBest(std::span<DraftShare> shares, int tokens, int certain,
                                     int max) {
  next_.clear();
  granted_.clear();
  together_.clear();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].max > 0) next_.push_back({shares[i].rates->Of(0), i, 0});
  }
  std::make_heap(next_.begin(), next_.end());
  double committed = certain;
  double drafting = 0.0;  // seconds of drafters
  const double plain = costs_.Seconds(std::max(tokens, 1));
  double best_rate = kMinGain * committed / plain;
  std::size_t best = 0;
  while (!next_.empty() && granted_.size() < static_cast<std::size_t>(max)) {
    std::pop_heap(next_.begin(), next_.end());
    Next& next = next_.back();
    if (next.chance < kMinChance) break;  // and so are all others
    const DraftShare& share = shares[next.share];
    committed += next.chance;
    drafting += SecondsOf(share, next.place);
    granted_.push_back(next.share);
    const int rows = tokens + static_cast<int>(granted_.size());
    // A measurement that was disturbed would make rows look free.
    const double seconds =
        std::max(costs_.Seconds(rows), plain * (1.0 + kMinCost * (rows - tokens)));
    const double rate = committed / (seconds + drafting);
    if (rate > best_rate) {
      best_rate = rate;
      best = granted_.size();
    }
    if (++next.place < std::min(share.max, DraftRates::kMax)) {
      next.chance *= share.rates->Of(next.place);
      std::push_heap(next_.begin(), next_.end());
    } else {
      next_.pop_back();
    }
  }
  for (std::size_t i = 0; i < best; ++i) ++shares[granted_[i]].drafts;
  return {.drafts = static_cast<int>(best), .gain = best_rate / (certain / plain)};
}

int DraftPlan::DraftsToTry(const DraftShare& share, int max) {
  const int left = std::min(share.max - share.drafts, max);
  if (left < 1) return 0;
  if (share.drafts > 0) return share.rates->TryDeeper() ? 1 : 0;
  return std::min(share.rates->TryAgain(), left);
}

void DraftPlan::Try(std::span<DraftShare> shares, int tokens, int max) {
  bool may_try = saved_ > 0.0;
  for (DraftShare& share : shares) {
    if (share.drafts > 0) share.rates->Pay();
    const int more = may_try ? DraftsToTry(share, max) : 0;
    if (more == 0) continue;
    may_try = false;
    share.drafts += more;
    const double each =
        share.batch != nullptr ? share.batch->Seconds(1) : share.rates->SecondsPerDraft();
    expected_ = costs_.Seconds(tokens + more);
    const double longer = expected_ - costs_.Seconds(tokens) + more * each;
    saved_ -= std::max(longer, 0.0);  // perhaps more than what was saved
  }
}

}  // namespace kvcache
