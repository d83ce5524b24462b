#include "kvcache/draft_depth.h"

#include <algorithm>
#include <cstddef>

namespace kvcache {
namespace {

constexpr double kNewest = 0.1;       // weight of the last measurement
constexpr double kCostOfDraft = 0.1;  // of a pass, before one was measured
constexpr double kFirstRate = 0.7;
constexpr int kFirstDepth = 4;
constexpr int kProbe = 2;     // drafts after a pause
constexpr int kRefresh = 64;  // rounds between two without drafts, whose time changes as well

void Mix(double& mean, double value) {
  mean += kNewest * (value - mean);
}

}  // namespace

double DraftDepth::Seconds(int drafted) const {
  const auto at = static_cast<std::size_t>(drafted);
  std::size_t below = 0;
  for (std::size_t depth = 1; depth <= at; ++depth) {
    if (seconds_[depth] > 0.0) below = depth;
  }
  const double low = seconds_[below];
  std::size_t above = at;
  while (above < seconds_.size() && seconds_[above] == 0.0) ++above;
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
  double rate_of_place = kFirstRate;
  double all_before = 1.0;
  double tokens = 1.0;
  for (int depth = 1; depth <= kMost; ++depth) {
    // A place that was not measured is like the one before it.
    const double measured = accepted_[static_cast<std::size_t>(depth - 1)];
    if (measured > 0.0) rate_of_place = measured;
    all_before *= rate_of_place;
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
    rounds_ = 0;
    return best;
  }
  if (++rounds_ < pause_) return 0;
  rounds_ = 0;
  pause_ = std::min(2 * pause_, kLongestPause);
  return kProbe;
}

void DraftDepth::Count(int drafted, int accepted, double seconds) {
  double& mean = seconds_[static_cast<std::size_t>(std::min(drafted, kMost))];
  if (mean == 0.0) {
    mean = seconds;
  } else {
    Mix(mean, seconds);
  }
  for (int place = 0; place < std::min(drafted, kMost); ++place) {
    if (place > accepted) break;  // it was not judged
    double& rate = accepted_[static_cast<std::size_t>(place)];
    if (rate == 0.0) rate = kFirstRate;
    Mix(rate, place < accepted ? 1.0 : 0.0);
  }
  if (drafted > 0 && accepted == drafted) pause_ = kFirstPause;
}

}  // namespace kvcache
