// The parts of decode attention that depend on the storage type, declared for every target: scores
// against keys and weighted sums of values.
//
// The definitions are in decode/kernels-inl.h. Each storage type is instantiated in a
// file of its own (f16.cc and its neighbours), so that they compile in parallel;
// attention_decode.cc includes the declarations only.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_DECODE_TYPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_TYPES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_TYPES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_DECODE_TYPES_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/common/block_dot-inl.h"
#include "kvcache/kv_backend.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// The most rows that share a pass over a split: the sums of more would not fit into the registers.
inline constexpr int kRowsAtOnce = kManyRegisters ? 8 : 4;

// R rows that are scored against all cells of the segments.
struct ScoredRows {
  std::span<const Segment> segments;
  float* q;       // R packed queries
  float* scores;  // [R][kScoreStride]
  Prefetcher* prefetcher;
};

// Calls together(range, weights, sums) for the positions that all rows see and alone(…) for the
// rest of each row. Sets the sums to zero first.
template <int R, class Together, class Alone>
HWY_INLINE void WeighInParts(const WeightedRows& rows, const Together& together,
                             const Alone& alone) {
  std::fill_n(rows.sums, R * rows.sum_stride, 0.0f);
  ForRanges(
      rows.ranges, [&](RowRange range) HWY_ATTR { together(range, rows.weights, rows.sums); },
      [&](std::size_t r, RowRange range) HWY_ATTR {
        alone(range, rows.weights + r * kScoreStride, rows.sums + r * rows.sum_stride);
      });
}

// Kernels for keys, or for values, of type kType. `count` rows: 1, 2, 3, 4 or kRowsAtOnce.
template <DType kType>
struct DecodeKernels {
  // Scores of all cells of the rows' segments.
  static void Score(const LayerKv& layer, int kv_head, const ScoredRows& rows, int count);
  // Weighted sums over all cells of the rows' segments. `workspace` holds BlockValuesFloats.
  static void Weight(const LayerKv& layer, int kv_head, const WeightedRows& rows, int count,
                     float* workspace, Prefetcher* prefetcher);
};

// The same for latents (kv_blocks.h).
struct LatentKernels {
  static void Score(const LayerKv& layer, int kv_head, const ScoredRows& rows, int count);
  // Weighted sums of the values that GatherLatents has written to `values`.
  static void Weight(const LayerKv& layer, const float* values, const WeightedRows& rows, int count,
                     float* workspace);
};

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
