// The two inner loops of attention for float types, for every target: scores of R rows against
// tiles of keys, and weighted sums of values for R rows. A row is one query of one head.
//
// Both loops keep R × (a few vectors) of sums in registers, so that each loaded key or value serves
// all R rows. Each score is one chain over k_dim and each weighted sum one chain over positions;
// R and the number of vectors only decide how many chains advance together.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_MICRO_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cpu/attention/attention_math-inl.h"
#include "backend/cpu/common/kv_convert-inl.h"
#include "backend/cpu/common/prefetch-inl.h"
#include "backend/cpu/simd/highway-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// AVX-512 and NEON have 32 registers, the others 16.
inline constexpr bool kManyRegisters = HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_EMU128;

// The source of a loop's keys or values: the KV cache in memory, which is worth prefetching, or a
// workspace that is in the processor's caches already.
enum class Stream { kMemory, kWorkspace };

// scores[r][0, 16 NT) = Σ_d q[d][r] k[tile][d][lane] for NT neighbouring tiles.
// Prefetches kLines lines for each of the k_dim values.
template <DType kType, int R, int NT,
          int kLines = (NT * kCellTile * static_cast<int>(sizeof(Storage<kType>)) + 63) / 64>
HWY_INLINE void ScoreTiles(const Storage<kType>* HWY_RESTRICT k, int k_dim,
                           const float* HWY_RESTRICT q, float* HWY_RESTRICT scores,
                           std::size_t score_stride, StreamPrefetch prefetch = {}) {
  constexpr int kVectors = NT * kRegs;
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
      const std::size_t tile = static_cast<std::size_t>(v / kRegs);
      key[v] = LoadWide<kType>(d, k + tile * tile_size + v % kRegs * kLanes);
    }
    if constexpr (kLines > 0) prefetch.Advance<kLines>();
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

// sums[r][i] += Σ_j weights[r][j] v[j][i] for NV vectors of `keys` rows of values, which are
// `v_stride` values apart. The last vector begins `last` values after the first. Prefetches kLines lines for each key.
template <class D, DType kType, int R, int NV, int kLines>
HWY_INLINE void WeightValues(const Storage<kType>* HWY_RESTRICT v, std::size_t v_stride,
                             std::size_t last, const float* HWY_RESTRICT weights, int keys,
                             float* HWY_RESTRICT sums, std::size_t sum_stride,
                             StreamPrefetch prefetch = {}) {
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
    if constexpr (kLines > 0) prefetch.Advance<kLines>();
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

// The weights of R rows, and the place of their sums.
struct WeightedRows {
  std::span<const Segment> segments;
  std::span<const RowRange> ranges;  // [R]
  const float* weights;              // [R][kScoreStride]
  float* sums;                       // [R][sum_stride]
  std::size_t sum_stride;
};

// Returns the positions that all rows with a non-empty range see; if there are none, an empty range
// at the split's end.
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

// Cuts the rows' ranges into parts: together(range) for the positions that all rows see,
// alone(row, range) for the positions before and after them. Each row's positions come in ascending
// order. A value that a row does not see is never multiplied with its weights, so its content
// cannot matter.
template <class Together, class Alone>
HWY_INLINE void ForRanges(std::span<const RowRange> ranges, const Together& together,
                          const Alone& alone) {
  const RowRange common = CommonRange(ranges);
  const auto each_row = [&](RowRange part) HWY_ATTR {
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      const RowRange range{std::max(ranges[r].begin, part.begin),
                           std::min(ranges[r].end, part.end)};
      if (!range.empty()) alone(r, range);
    }
  };
  each_row({0, common.begin});
  if (!common.empty()) together(common);
  each_row({common.end, kSplitPositions});
}

// Interleaves the rows' queries: q[d][r] = scale × queries[r][d]. Rows from `rows` on repeat the
// first one.
template <int R>
HWY_INLINE void PackQueries(const float* const* queries, int rows, int k_dim, float scale,
                            float* HWY_RESTRICT q) {
  const float* row[R];
  for (int r = 0; r < R; ++r) row[r] = queries[r < rows ? r : 0];
  for (int d = 0; d < k_dim; ++d, q += R) {
    KVCACHE_UNROLL
    for (int r = 0; r < R; ++r) q[r] = row[r][d] * scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
