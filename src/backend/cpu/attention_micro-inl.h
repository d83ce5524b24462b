// The two inner loops of attention, for every target: scores of R rows against tiles of keys,
// and R rows' weighted sums of values. A row is one query of one head.
//
// Each score is one chain over k_dim and each weighted sum one chain over positions, whatever
// R and the number of vectors: those only say how much is done at once.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/attention_math-inl.h"
#include "backend/cpu/kv_convert-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Loops over registers: the compiler must unroll them wholly, or the sums live in memory.
#if defined(__clang__)
#define KVCACHE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KVCACHE_UNROLL _Pragma("GCC unroll 16")
#endif

// AVX-512 and NEON have 32 registers, the others 16.
inline constexpr bool kManyRegisters = HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_EMU128;

// scores[r][0, 16 NT) = Σ_d q[d][r] k[tile][d][lane] for NT neighbouring tiles.
template <DType kType, int R, int NT>
HWY_INLINE void ScoreTiles(const Storage<kType>* HWY_RESTRICT k, int k_dim,
                           const float* HWY_RESTRICT q, float* HWY_RESTRICT scores,
                           std::size_t score_stride) {
  constexpr int kVectors = NT * kVectorsPerTile;
  const DF d;
  const std::size_t tile_size = static_cast<std::size_t>(k_dim) * kCellTile;
  VF sum[R][kVectors];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int i = 0; i < k_dim; ++i, k += kCellTile, q += R) {
    VF key[kVectors];
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const std::size_t tile = static_cast<std::size_t>(v / kVectorsPerTile);
      key[v] = LoadWide<kType>(d, k + tile * tile_size + v % kVectorsPerTile * kLanes);
    }
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) {
      const VF query = hn::Set(d, q[r]);
      KVCACHE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(query, key[v], sum[r][v]);
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], d, scores + r * score_stride + v * kLanes);
    }
  }
}

// sums[r][i] += Σ_j weights[r][j] v[j][…] for `keys` values `v_stride` apart and NV vectors of
// them; the last vector lies `last` values from the first one's start.
template <class D, DType kType, int R, int NV>
HWY_INLINE void WeightValues(const Storage<kType>* HWY_RESTRICT v, std::size_t v_stride,
                             std::size_t last, const float* HWY_RESTRICT weights, int keys,
                             float* HWY_RESTRICT sums, std::size_t sum_stride) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[R][NV];
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < NV; ++i) sum[r][i] = hn::LoadU(d, sums + r * sum_stride + i * lanes);
  }
  for (int j = 0; j < keys; ++j, v += v_stride) {
    hn::Vec<D> value[NV];
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < NV; ++i) value[i] = LoadWide<kType>(d, v + i * lanes);
    value[NV - 1] = LoadWide<kType>(d, v + last);
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto weight = hn::Set(d, weights[r * kScoreStride + j]);
      KVCACHE_UNROLL
      for (int i = 0; i < NV; ++i) sum[r][i] = hn::MulAdd(weight, value[i], sum[r][i]);
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    KVCACHE_UNROLL
    for (int i = 0; i < NV; ++i) hn::StoreU(sum[r][i], d, sums + r * sum_stride + i * lanes);
  }
}

// Where the values of a split lie: the value of cell c at values + c × stride.
template <DType kType>
struct SplitValues {
  const Storage<kType>* values;
  std::size_t stride;
  int v_dim;
  int keys_at_once;  // so many keys' values stay in the first-level cache
  std::span<const Segment> segments;
};

// WeightValues over all vectors of `keys` neighbouring cells. A last vector that would stick
// out overlaps the one before: its sums lie in lanes of their own.
template <DType kType, int R, int NV>
HWY_INLINE void WeightCells(const SplitValues<kType>& in, std::int64_t cell, const float* weights,
                            int keys, float* sums, std::size_t sum_stride) {
  const Storage<kType>* const v = in.values + static_cast<std::size_t>(cell) * in.stride;
  const int vectors = (in.v_dim + kLanes - 1) / kLanes;
  if (in.v_dim < kLanes) {
    for (int i = 0; i < in.v_dim; ++i) {
      WeightValues<hn::CappedTag<float, 1>, kType, R, 1>(v + i, in.stride, 0, weights, keys,
                                                         sums + i, sum_stride);
    }
    return;
  }
  int i = 0;
  for (; i + NV <= vectors; i += NV) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    const int last = std::min((i + NV - 1) * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, NV>(v + first, in.stride, static_cast<std::size_t>(last - first),
                                   weights, keys, sums + i * kLanes, sum_stride);
  }
  for (; i < vectors; ++i) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, 1>(v + first, in.stride, 0, weights, keys, sums + i * kLanes,
                                  sum_stride);
  }
}

// The same over the positions of `range` that are in segments, ascending.
template <DType kType, int R, int NV>
HWY_INLINE void WeightRange(const SplitValues<kType>& in, RowRange range, const float* weights,
                            float* sums, std::size_t sum_stride) {
  for (const Segment& segment : in.segments) {
    const int end = std::min(range.end, segment.end);
    for (int j = std::max(range.begin, segment.begin); j < end; j += in.keys_at_once) {
      const std::int64_t cell = std::int64_t{segment.cell} + (j - segment.begin);
      WeightCells<kType, R, NV>(in, cell, weights + j, std::min(in.keys_at_once, end - j), sums,
                                sum_stride);
    }
  }
}

// What all rows that see anything see together; if there is no such range, an empty one at
// the split's end.
HWY_INLINE RowRange CommonRange(std::span<const RowRange> ranges) {
  RowRange common{0, kSplitPositions};
  bool any = false;
  for (const RowRange& range : ranges) {
    if (range.empty()) continue;
    any = true;
    common.begin = std::max(common.begin, range.begin);
    common.end = std::min(common.end, range.end);
  }
  return any && !common.empty() ? common : RowRange{kSplitPositions, kSplitPositions};
}

// From zero: each row's weighted sum over its own range, R rows at a time where they see the
// same. A key that a row does not see is never multiplied, so its content cannot matter.
// REQUIRES: ranges.size() <= R; `weights` and `sums` have R rows.
template <DType kType, int R, int NV>
HWY_INLINE void WeightRows(const SplitValues<kType>& in, std::span<const RowRange> ranges,
                           const float* weights, float* sums, std::size_t sum_stride) {
  std::memset(sums, 0, R * sum_stride * sizeof(float));
  const RowRange common = CommonRange(ranges);
  const auto each_row = [&](RowRange part) HWY_ATTR {
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      const RowRange range{std::max(ranges[r].begin, part.begin),
                           std::min(ranges[r].end, part.end)};
      if (range.empty()) continue;
      WeightRange<kType, 1, 4>(in, range, weights + r * kScoreStride, sums + r * sum_stride,
                               sum_stride);
    }
  };
  each_row({0, common.begin});
  WeightRange<kType, R, NV>(in, common, weights, sums, sum_stride);
  each_row({common.end, kSplitPositions});
}

// q[d][R] = scale × the rows' queries; rows beyond `rows` are zero.
template <int R>
HWY_INLINE void PackQueries(const float* const* queries, int rows, int k_dim, float scale,
                            float* q) {
  KVCACHE_UNROLL
  for (int r = 0; r < R; ++r) {
    for (int d = 0; d < k_dim; ++d) q[d * R + r] = r < rows ? queries[r][d] * scale : 0.0f;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
