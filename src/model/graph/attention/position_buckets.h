// T5's relative position bias: each head adds a learned number per bucket of distances to its
// scores. Near distances have one bucket each; the buckets of further ones grow geometrically up to
// 128.
//
//   bidirectional, 32 buckets   keys before the query: distances 0 … 7 have a bucket each, the
//                               next buckets begin at 8, 12, 16, 23, 32, …; 16 more buckets for
//                               keys after it
//   causal, 32 buckets          distances 0 … 15 have a bucket each, the rest grow geometrically
//
// Source: Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
// transformer" (2020), section 2.1, and the code published with it.
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/backend.h"

namespace kvcache {

enum class AttentionDirection : std::uint8_t { kBidirectional, kCausal };

// Returns the bucket of a key at `distance` = its position - the query's. REQUIRES: at least 4
// buckets.
int PositionBucket(int distance, int buckets, AttentionDirection direction);

// The bias of each distance, as a table for AttentionOptions::bias.
class BucketBias {
 public:
  BucketBias() = default;
  // `of_bucket` is [heads, buckets].
  BucketBias(std::span<const float> of_bucket, int heads, int buckets,
             AttentionDirection direction);

  // Returns a view, valid as long as this object.
  PositionBias bias() const { return {.values = values_, .past = past_, .future = future_}; }

 private:
  int past_ = 0;
  int future_ = 0;
  std::vector<float> values_;  // [past + 1 + future, heads]
};

}  // namespace kvcache
