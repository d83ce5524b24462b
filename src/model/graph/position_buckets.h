// T5's bias by distance: a number of each head's own for each bucket of distances, near ones in
// buckets of their own, further ones in buckets that grow geometrically up to 128.
//
//   both ways, 32 buckets    keys before: 0 … 7 each their own, then to 8, 12, 16, 23, 32, …; 16
//   more
//                            for keys behind
//   backwards alone          0 … 15 each their own, then geometrically
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

// The bucket of a key at `distance` = its position - the query's. REQUIRES: at least 4 buckets.
int PositionBucket(int distance, int buckets, AttentionDirection direction);

// What buckets say of each distance, for AttentionOptions::bias.
class BucketBias {
 public:
  BucketBias() = default;
  // `of_bucket` is [heads, buckets].
  BucketBias(std::span<const float> of_bucket, int heads, int buckets,
             AttentionDirection direction);

  // A view, valid as long as this.
  PositionBias bias() const { return {.values = values_, .past = past_, .future = future_}; }

 private:
  int past_ = 0;
  int future_ = 0;
  std::vector<float> values_;  // [past + 1 + future, heads]
};

}  // namespace kvcache
