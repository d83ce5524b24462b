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
#include <cstdint>
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

// The most rows whose scores against a split are in memory together.
inline constexpr int kRowsTogether = 32;

// Calls each(part) for the parts of the segments that have at most `cells` cells, a multiple of a tile's, cut at tiles.
template <class EachPart>
HWY_INLINE void ForParts(std::span<const Segment> segments, int cells, const EachPart& each) {
  for (const Segment& segment : segments) {
    for (int begin = segment.begin; begin < segment.end;) {
      const std::int32_t cell = segment.cell + (begin - segment.begin);
      const int end = std::min(segment.end, begin + cells - cell % kCellTile);
      each(Segment{begin, end, cell});
      begin = end;
    }
  }
}

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

// Kernels for keys, or for values, of f16 and bf16 and more than kRowsAtOnce rows. All rows, in groups of their own, are
// multiplied with a few tiles that stay in the first-level cache before the next ones, so that the prefetches of the
// first group have the time of all groups. Where registers are short, the tiles are widened to f32 first.
struct ManyRowKernels {
  // The rows that have room in `q`, `scores` and `sums`, with those that fill the last group.
  static constexpr std::int64_t Room(std::int64_t rows) {
    return RoundUp<std::int64_t>(rows, kRowsTogether);
  }
  static std::int64_t WorkspaceFloats(const LayerKv& layer);
  // Packs the queries of up to kRowsTogether rows.
  static void Pack(std::span<const float* const> queries, int k_dim, float scale, float* q);
  // Scores of all cells of the rows' segments. `q` comes from Pack.
  static void Score(const LayerKv& layer, int kv_head, const ScoredRows& rows, int count,
                    float* workspace);
  // Weighted sums over all cells of the rows' segments. A row without a range may get any sums.
  static void Weight(const LayerKv& layer, int kv_head, const WeightedRows& rows, float* workspace,
                     const StreamLink& stream);
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
