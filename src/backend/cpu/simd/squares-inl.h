// The sum of a row's squares, for every target; norms of hidden states, heads, keys and queries use
// it. It sums in the 16 virtual lanes of docs/design/exactness.md, whatever the vector's width.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_SQUARES_INL_H_
#undef KVCACHE_BACKEND_CPU_SQUARES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_SQUARES_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float SumOfSquares(const float* x, std::int64_t width) {
  Lanes16 sum = ZeroLanes();
  std::int64_t i = 0;
  for (; i + kVirtualLanes <= width; i += kVirtualLanes) {
    MulAddLanes<LoadF32, LoadF32>(x + i, x + i, sum);
  }
  if (i < width) {
    HWY_ALIGN float tail[kVirtualLanes] = {};
    std::memcpy(tail, x + i, static_cast<std::size_t>(width - i) * sizeof(float));
    MulAddFirstLanes<LoadF32, LoadF32>(tail, tail, static_cast<int>(width - i), sum);
  }
  return FoldLanes(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
