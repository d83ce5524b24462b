#include "speculation/pass_costs.h"

#include <algorithm>
#include <cmath>

namespace kvcache {
namespace {

constexpr double kNewestCost = 0.1;   // weight of the last measurement
constexpr double kCostOfToken = 0.1;  // of a pass of few tokens, before two sizes were measured
constexpr double kFewTokens = 4.0;
constexpr double kNewestPace = 0.1;  // weight of the last measurement
constexpr double kMostPace = 2.0;  // of one pass: what delays a single pass says little of the next

}  // namespace

std::size_t PassCosts::IndexOf(int tokens) {
  if (tokens <= kExact) return static_cast<std::size_t>(std::max(tokens, 1) - 1);
  const double octaves = std::log2(static_cast<double>(tokens) / kExact);
  const int step = std::min(static_cast<int>(octaves * kPerOctave), kPerOctave * kOctaves - 1);
  return static_cast<std::size_t>(kExact + step);
}

void PassCosts::Count(int tokens, double seconds) {
  Point& point = points_[IndexOf(tokens)];
  const bool measured = point.tokens > 0.0;
  if (point.seconds > 0.0 && tokens <= kExact) {
    const double pace = std::clamp(seconds / (point.seconds * pace_), 1.0 / kMostPace, kMostPace);
    pace_ *= 1.0 + kNewestPace * (pace - 1.0);
  }
  const double weight = measured ? kNewestCost : 1.0;
  point.tokens += weight * (tokens - point.tokens);
  point.seconds += weight * (seconds / pace_ - point.seconds);
  known_ = true;
}

double PassCosts::Seconds(int tokens) const {
  return pace_ * SecondsAtPaceOfOne(tokens);
}

double PassCosts::SecondsAtPaceOfOne(int tokens) const {
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
  double slope = kCostOfToken * below.seconds / std::max(1.0, below.tokens / kFewTokens);
  if (high < points_.size()) {
    const Point& above = points_[high];
    slope = (above.seconds - below.seconds) / (above.tokens - below.tokens);
  } else {
    std::size_t first = 0;
    while (points_[first].tokens == 0.0) ++first;
    if (first + 1 < low) {
      slope = (below.seconds - points_[first].seconds) / (below.tokens - points_[first].tokens);
    }
  }
  return below.seconds + std::max(slope, 0.0) * (tokens - below.tokens);
}

}  // namespace kvcache
