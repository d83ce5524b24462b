// The softmax of one split and the merge of splits, for every target.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_MATH_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_MATH_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_MATH_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/common/kv_storage.h"
#include "backend/cpu/simd/exp-inl.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kHidden = -std::numeric_limits<float>::infinity();

static_assert(kCellTile == kVirtualLanes);

HWY_INLINE float Exp1(float x) {
  const hn::CappedTag<float, 1> d1;
  return hn::GetLane(Exp(d1, hn::Set(d1, x)));
}

HWY_INLINE float MulAdd1(float a, float b, float c) {
  const hn::CappedTag<float, 1> d1;
  return hn::GetLane(hn::MulAdd(hn::Set(d1, a), hn::Set(d1, b), hn::Set(d1, c)));
}

HWY_INLINE void SoftCap(float* scores, RowRange tiles, float cap) {
  const DF d;
  const VF cap_v = hn::Set(d, cap);
  for (int i = tiles.begin; i < tiles.end; i += kLanes) {
    const VF s = hn::LoadU(d, scores + i);
    hn::StoreU(hn::Mul(cap_v, Tanh(d, hn::Div(s, cap_v))), d, scores + i);
  }
}

// Sets the scores of `tiles` that are not both in `range` and in a segment to -inf.
HWY_INLINE void HideUnseen(float* scores, RowRange tiles, RowRange range,
                           std::span<const Segment> segments) {
  int next = tiles.begin;
  for (const Segment& segment : segments) {
    const int first = std::max(range.begin, segment.begin);
    const int last = std::min(range.end, segment.end);
    if (first >= last) continue;
    std::fill(scores + next, scores + first, kHidden);
    next = last;
  }
  std::fill(scores + next, scores + tiles.end, kHidden);
}

HWY_INLINE float LargestScore(const float* scores, RowRange tiles) {
  const DF d;
  // A tile's vectors have a chain each, and neighbouring tiles too: a single one would wait for its
  // own last step.
  VF largest[2][kRegs];
  KVCACHE_UNROLL
  for (int v = 0; v < kRegs; ++v) largest[0][v] = largest[1][v] = hn::Set(d, kHidden);
  int i = tiles.begin;
  for (; i + 2 * kCellTile <= tiles.end; i += 2 * kCellTile) {
    KVCACHE_UNROLL
    for (int v = 0; v < 2 * kRegs; ++v) {
      VF& chain = largest[v / kRegs][v % kRegs];
      chain = hn::Max(chain, hn::LoadU(d, scores + i + v * kLanes));
    }
  }
  if (i < tiles.end) {
    KVCACHE_UNROLL
    for (int v = 0; v < kRegs; ++v) {
      largest[0][v] = hn::Max(largest[0][v], hn::LoadU(d, scores + i + v * kLanes));
    }
  }
  VF max = hn::Max(largest[0][0], largest[1][0]);
  KVCACHE_UNROLL
  for (int v = 1; v < kRegs; ++v) {
    max = hn::Max(max, hn::Max(largest[0][v], largest[1][v]));
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

struct SplitSums {
  float max = kHidden;  // -inf: nothing was visible
  float sum = 0.0f;
};

HWY_INLINE void AddBias(float* scores, RowRange range, const RowBias& bias) {
  for (int p = range.begin; p < range.end; ++p) {
    scores[p] += bias.values[std::clamp<std::int64_t>(bias.zero + p, 0, bias.last)];
  }
}

// Replaces the scores of one row by weights: exp(s - max) where visible, +0 in the rest of the
// 16-position tiles that `range` touches. Calls each_tile() once per tile, for prefetching.
// Returns the largest score and the sum of the weights. REQUIRES: `range` comes from RangeInSplit
// and is not empty.
template <class EachTile>
HWY_INLINE SplitSums SoftmaxRow(float* scores, RowRange range, std::span<const Segment> segments,
                                float soft_cap, const RowBias& bias, const EachTile& each_tile) {
  const DF d;
  const RowRange tiles{range.begin / kCellTile * kCellTile, RoundUp(range.end, kCellTile)};
  if (soft_cap > 0.0f) SoftCap(scores, tiles, soft_cap);
  if (bias.values != nullptr) AddBias(scores, range, bias);
  HideUnseen(scores, tiles, range, segments);
  const float largest = LargestScore(scores, tiles);
  if (largest == kHidden) return {};
  const VF largest_v = hn::Set(d, largest);
  Lanes16 sum = ZeroLanes();
  for (int i = tiles.begin; i < tiles.end; i += kCellTile) {
    each_tile();
    KVCACHE_UNROLL
    for (int v = 0; v < kRegs; ++v) {
      float* const s = scores + i + v * kLanes;
      const VF weight = Exp(d, hn::Sub(hn::LoadU(d, s), largest_v));
      hn::StoreU(weight, d, s);
      sum.r[v] = hn::Add(sum.r[v], weight);
    }
  }
  return {largest, FoldLanes(sum)};
}

// Merges one split into (into, into_values), the result of the splits before it, as
// docs/design/exactness.md defines. `count` values, a multiple of the lanes. A split in which
// nothing was visible changes nothing.
HWY_INLINE void MergeSplit(SplitSums split, const float* values, int count, SplitSums& into,
                           float* into_values) {
  const DF d;
  if (split.max == kHidden) return;
  if (into.max == kHidden) {
    into = split;
    std::copy_n(values, count, into_values);
    return;
  }
  const float max = std::max(into.max, split.max);
  const float keep = Exp1(into.max - max);
  const float add = Exp1(split.max - max);
  into = {max, MulAdd1(into.sum, keep, split.sum * add)};
  const VF keep_v = hn::Set(d, keep);
  const VF add_v = hn::Set(d, add);
  for (int i = 0; i < count; i += kLanes) {
    const VF scaled = hn::Mul(hn::LoadU(d, values + i), add_v);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, into_values + i), keep_v, scaled), d, into_values + i);
  }
}

// Completes a row in place: merges the sink, which is a split without values, and divides the
// values by the sum. Writes zeros if nothing was visible.
HWY_INLINE void FinishRow(SplitSums sums, const float* sink, int count, float* values) {
  const DF d;
  if (sums.max == kHidden) {
    std::fill_n(values, count, 0.0f);
    return;
  }
  float keep = 1.0f;
  if (sink != nullptr) {
    const float max = std::max(sums.max, *sink);
    keep = Exp1(sums.max - max);
    sums.sum = MulAdd1(sums.sum, keep, Exp1(*sink - max));
  }
  const VF keep_v = hn::Set(d, keep);
  const VF sum = hn::Set(d, sums.sum);
  for (int i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::Div(hn::Mul(hn::LoadU(d, values + i), keep_v), sum), d, values + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
