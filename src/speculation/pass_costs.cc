#include "speculation/pass_costs.h"

#include <algorithm>
#include <cmath>

#include "kvcache/draft_rates.h"

namespace kvcache {
namespace {

constexpr double kNewestSize = 0.1;   // weight of the last measurement
constexpr double kCostOfToken = 0.1;  // of a pass of few tokens, before two sizes were measured
constexpr double kFewTokens = 4.0;
constexpr double kNear = 2.0;  // times as many tokens

}  // namespace

std::size_t PassCosts::IndexOf(int tokens) {
  if (tokens <= kExact) return static_cast<std::size_t>(std::max(tokens, 1) - 1);
  const double octaves = std::log2(static_cast<double>(tokens) / kExact);
  const int step = std::min(static_cast<int>(octaves * kPerOctave), kPerOctave * kOctaves - 1);
  return static_cast<std::size_t>(kExact + step);
}

void PassCosts::Count(int tokens, double seconds) {
  Point& point = points_[IndexOf(tokens)];
  point.tokens += (point.tokens == 0.0 ? 1.0 : kNewestSize) * (tokens - point.tokens);
  point.seconds = UsualTime(point.seconds, seconds);
  known_ = true;
}

double PassCosts::SlopeUpTo(std::size_t index) const {
  const Point& last = points_[index];
  std::size_t first = 0;
  while (points_[first].tokens == 0.0) ++first;
  if (first == index) return kCostOfToken * last.seconds / std::max(1.0, last.tokens / kFewTokens);
  return (last.seconds - points_[first].seconds) / (last.tokens - points_[first].tokens);
}

double PassCosts::Seconds(int tokens) const {
  const std::size_t at = IndexOf(tokens);
  std::size_t low = at + 1;
  while (low > 0 && points_[low - 1].tokens == 0.0) --low;
  std::size_t high = at;
  while (high < points_.size() && points_[high].tokens == 0.0) ++high;
  if (low == 0) return points_[high].seconds;  // smaller passes do not cost more
  const Point& below = points_[low - 1];
  if (below.tokens >= tokens) return below.seconds;
  if (high == at) ++high;  // `at` itself lies below
  while (high < points_.size() && points_[high].tokens == 0.0) ++high;
  double slope = SlopeUpTo(low - 1);
  if (high < points_.size()) {
    const Point& above = points_[high];
    const double up = (above.seconds - below.seconds) / (above.tokens - below.tokens);
    // A pass that is much larger says little about a few tokens more. Often it was the first one of all,
    // and slow.
    slope = above.tokens <= kNear * below.tokens ? up : std::min(up, slope);
  }
  return below.seconds + std::max(slope, 0.0) * (tokens - below.tokens);
}

}  // namespace kvcache
