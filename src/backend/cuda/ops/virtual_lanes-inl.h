// Sums in the 64 virtual lanes of docs/design/exactness.md, by a warp: thread t has lanes t and t + 32.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

inline constexpr int kNormLanes = 64;
inline constexpr int kWarpThreads = 32;
static_assert(kNormLanes == 2 * kWarpThreads);

// Folds a warp's lanes: 32 apart, then 16, 8, 4, 2, 1. Each thread gets the sum. All threads take part.
KVCACHE_DEVICE float FoldNormLanes(float low, float high) {
  float sum = Add(low, high);
  for (int apart = kWarpThreads / 2; apart > 0; apart /= 2) {
    sum = Add(sum, ShuffleXor(sum, apart));
  }
  return sum;
}

}  // namespace kvcache::cuda
