#include "model/graph/attention/position_buckets.h"

#include <algorithm>
#include <cstdlib>

#include "base/arithmetic/doubles.h"

namespace kvcache {
namespace {

// All distances from here on are in the last bucket. Files do not carry this number; it is the same
// in all published models.
constexpr int kMaxDistance = 128;

// Returns the bucket, exact … buckets - 1, of a distance that is at least `exact`.
int GrowingBucket(int distance, int exact, int buckets) {
  // Distances that are powers of two give whole numbers. Without slack, rounding could put them
  // into the bucket below.
  constexpr double kSlack = 1e-9;
  const double share = arithmetic::Log(static_cast<double>(distance) / exact) /
                       arithmetic::Log(static_cast<double>(kMaxDistance) / exact);
  return std::min(exact + static_cast<int>(share * (buckets - exact) + kSlack), buckets - 1);
}

int BucketOneWay(int distance, int buckets) {
  const int exact = buckets / 2;
  return distance < exact ? distance : GrowingBucket(distance, exact, buckets);
}

}  // namespace

int PositionBucket(int distance, int buckets, AttentionDirection direction) {
  if (direction == AttentionDirection::kCausal)
    return BucketOneWay(std::max(-distance, 0), buckets);
  const int half = buckets / 2;
  return (distance > 0 ? half : 0) + BucketOneWay(std::abs(distance), half);
}

BucketBias::BucketBias(std::span<const float> of_bucket, int heads, int buckets,
                       AttentionDirection direction)
    : past_(kMaxDistance),
      future_(direction == AttentionDirection::kBidirectional ? kMaxDistance : 0) {
  for (int head = 0; head < heads; ++head) {
    for (int distance = -past_; distance <= future_; ++distance) {
      const int bucket = PositionBucket(distance, buckets, direction);
      values_.push_back(of_bucket[static_cast<std::size_t>(bucket * heads + head)]);
    }
  }
}

}  // namespace kvcache
