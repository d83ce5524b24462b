#include "kvcache/draft_depth.h"

#include <algorithm>
#include <cstddef>

#include "speculation/usual_time.h"

namespace kvcache {
namespace {

constexpr double kCostOfDraft = 0.1;  // of a pass, before one was measured
constexpr int kOldRounds = 32;
constexpr int kForgetRounds = 256;
constexpr int kFirstDepth = 4;
constexpr int kRefresh = 64;  // rounds between two without drafts, whose time changes as well

}  // namespace

// What a pass takes without drafts is always known, so that drafts can pay again.
bool DraftDepth::IsKnown(std::size_t drafted) const {
  const bool is_new = drafted == 0 || rounds_ - measured_[drafted] <= kForgetRounds;
  return seconds_[drafted] > 0.0 && is_new;
}

double DraftDepth::Seconds(int drafted) const {
  const auto at = static_cast<std::size_t>(drafted);
  std::size_t below = 0;
  for (std::size_t depth = 1; depth <= at; ++depth) {
    if (IsKnown(depth)) below = depth;
  }
  const double low = seconds_[below];
  std::size_t above = at;
  while (above < seconds_.size() && !IsKnown(above)) ++above;
  const auto more = static_cast<double>(at - below);
  if (above == seconds_.size()) {
    const double draft =
        below > 0 ? (low - seconds_[0]) / static_cast<double>(below) : kCostOfDraft * low;
    return low + std::max(0.0, draft) * more;
  }
  if (above == below) return low;
  return low + (seconds_[above] - low) * more / static_cast<double>(above - below);
}

int DraftDepth::Best() const {
  int best = 0;
  double best_rate = 1.0 / Seconds(0);
  double all_before = 1.0;
  double tokens = 1.0;
  for (int depth = 1; depth <= kMost; ++depth) {
    all_before *= rates_.Of(depth - 1);
    tokens += all_before;
    const double rate = tokens / Seconds(depth);
    if (rate > best_rate) {
      best = depth;
      best_rate = rate;
    }
  }
  return best;
}

int DraftDepth::Next() {
  if (seconds_[0] == 0.0 || ++rounds_with_drafts_ % kRefresh == 0) return 0;
  const bool any =
      std::any_of(seconds_.begin() + 1, seconds_.end(), [](double s) { return s > 0.0; });
  if (!any) return kFirstDepth;
  if (const int best = Best(); best > 0) {
    rates_.Pay();
    return best;
  }
  return rates_.TryAgain();
}

void DraftDepth::Count(int drafted, int accepted, double seconds) {
  ++rounds_;
  const auto at = static_cast<std::size_t>(std::min(drafted, kMost));
  // Nothing makes a pass shorter than usual but a machine that has less other work.
  const bool is_old = rounds_ - measured_[at] > kOldRounds;
  const bool replaces = !IsKnown(at) || (is_old && seconds < seconds_[at]);
  seconds_[at] = replaces ? seconds : UsualTime(seconds_[at], seconds);
  measured_[at] = rounds_;
  rates_.Count(drafted, accepted);
}

}  // namespace kvcache
