#include "speculation/pass_costs.h"

#include <algorithm>
#include <cmath>

namespace kvcache {
namespace {

constexpr double kNewestCost = 0.1;   // weight of the last measurement
constexpr double kCostOfToken = 0.1;  // of a pass of few tokens, before two sizes were measured
constexpr double kFewTokens = 4.0;
constexpr double kNear = 4.0;        // times as many tokens
constexpr double kNewestPace = 0.1;  // weight of the last measurement
constexpr double kMaxChange = 1.5;   // what delays a single pass says little of the next
constexpr int kOldPasses = 32;
constexpr int kForgetPasses = 256;

}  // namespace

std::size_t PassCosts::IndexOf(int tokens) {
  if (tokens <= kExact) return static_cast<std::size_t>(std::max(tokens, 1) - 1);
  const double octaves = std::log2(static_cast<double>(tokens) / kExact);
  const int step = std::min(static_cast<int>(octaves * kPerOctave), kPerOctave * kOctaves - 1);
  return static_cast<std::size_t>(kExact + step);
}

void PassCosts::Count(int tokens, double seconds) {
  if (++passes_ % kOldPasses == 0) Forget();
  Point& point = points_[IndexOf(tokens)];
  const bool measured = point.tokens > 0.0;
  double weight = measured ? kNewestCost : 1.0;
  if (point.seconds > 0.0) {
    const double expected = point.seconds * pace_;
    seconds = std::min(seconds, kMaxChange * expected);
    if (tokens <= kExact) pace_ *= 1.0 + kNewestPace * (seconds / expected - 1.0);
    // Nothing makes a pass shorter than usual but a machine that has less other work.
    if (passes_ - point.measured > kOldPasses && seconds < expected) {
      seconds = std::max(seconds, expected / 2);
      weight = 0.5;
    }
  }
  point.measured = passes_;
  point.tokens += weight * (tokens - point.tokens);
  point.seconds += weight * (seconds / pace_ - point.seconds);
  if (!measured) LinkNeighbors();
}

// What the smallest pass takes is always known, so that larger ones can pay again.
void PassCosts::Forget() {
  bool any = false;
  for (std::size_t at = 0; at < points_.size(); ++at) {
    const bool is_old = passes_ - points_[at].measured > kForgetPasses;
    if (at == first_ || points_[at].tokens == 0.0 || !is_old) continue;
    points_[at] = {};
    any = true;
  }
  if (any) LinkNeighbors();
}

double PassCosts::Seconds(int tokens) const {
  return pace_ * SecondsAtPaceOfOne(tokens);
}

// Links each point to the nearest measured ones: itself or the one below it, and the one above it.
void PassCosts::LinkNeighbors() {
  std::size_t last = kNone;
  first_ = kNone;
  for (std::size_t at = 0; at < points_.size(); ++at) {
    if (points_[at].tokens > 0.0) last = at;
    if (first_ == kNone) first_ = last;
    below_[at] = last;
  }
  std::size_t next = kNone;
  for (std::size_t at = points_.size(); at-- > 0;) {
    above_[at] = next;
    if (points_[at].tokens > 0.0) next = at;
  }
}

double PassCosts::SlopeUpTo(std::size_t index) const {
  const Point& first = points_[first_];
  const Point& last = points_[index];
  if (first_ == index) return kCostOfToken * last.seconds / std::max(1.0, last.tokens / kFewTokens);
  return (last.seconds - first.seconds) / (last.tokens - first.tokens);
}

double PassCosts::SecondsAtPaceOfOne(int tokens) const {
  const std::size_t at = IndexOf(tokens);
  if (below_[at] == kNone) return points_[above_[at]].seconds;  // smaller passes do not cost more
  const Point& below = points_[below_[at]];
  if (below.tokens >= tokens) return below.seconds;
  double slope = SlopeUpTo(below_[at]);
  if (above_[at] != kNone) {
    const Point& above = points_[above_[at]];
    const double up = (above.seconds - below.seconds) / (above.tokens - below.tokens);
    // A pass that is much larger says little about a few tokens more. Often it was the first one of all,
    // and slow.
    slope = above.tokens <= kNear * below.tokens ? up : std::min(up, slope);
  }
  return below.seconds + std::max(slope, 0.0) * (tokens - below.tokens);
}

}  // namespace kvcache
