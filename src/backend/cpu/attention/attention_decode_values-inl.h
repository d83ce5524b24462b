// The values of few rows, for every target: rows' weighted sums over the cells of a history's
// segments, read as they lie.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention/attention_block_values-inl.h"
#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Values of neighbouring cells that are weighed together: several passes over them read them from
// the first-level cache, and each is long enough for the hardware's own streams.
inline constexpr int kBytesAtOnce = 16384;

// Where a head's values lie: those of cell c at values + c × stride.
template <DType kType>
struct HeadCells {
  const Storage<kType>* values;
  std::size_t stride;
  int v_dim;
  std::span<const Segment> segments;
  StreamLink stream;
};

// WeightValues over all vectors of `keys` neighbouring cells. A last vector that would stick
// out overlaps the one before: its sums lie in lanes of their own.
template <DType kType, int R, int NV>
void WeightCells(const HeadCells<kType>& in, std::int64_t cell, const float* weights, int keys,
                 float* sums, std::size_t sum_stride) {
  const Storage<kType>* const v = in.values + static_cast<std::size_t>(cell) * in.stride;
  const int vectors = (in.v_dim + kLanes - 1) / kLanes;
  if (in.v_dim < kLanes) {
    for (int i = 0; i < in.v_dim; ++i) {
      WeightValues<hn::CappedTag<float, 1>, kType, R, 1, Stream::kWorkspace>(
          v + i, in.stride, 0, weights, keys, sums + i, sum_stride);
    }
    return;
  }
  // Each pass over the keys asks for its share of their successors.
  const auto prefetch = [&](int i, int count) {
    const auto row = static_cast<std::ptrdiff_t>(in.stride * sizeof(*v));
    const std::ptrdiff_t share = row * count / vectors;
    return StreamPrefetch::Ahead(reinterpret_cast<const char*>(v) + row * i / vectors * keys,
                                 row * keys, share, in.stream);
  };
  int i = 0;
  for (; i + NV <= vectors; i += NV) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    const int last = std::min((i + NV - 1) * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, NV, Stream::kMemory>(
        v + first, in.stride, static_cast<std::size_t>(last - first), weights, keys,
        sums + i * kLanes, sum_stride, prefetch(i, NV));
  }
  for (; i < vectors; ++i) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, 1, Stream::kMemory>(v + first, in.stride, 0, weights, keys,
                                                   sums + i * kLanes, sum_stride, prefetch(i, 1));
  }
}

// The same over the positions of `range` that are in segments, ascending.
template <DType kType, int R, int NV>
void WeightRange(const HeadCells<kType>& in, RowRange range, const float* weights, float* sums,
                 std::size_t sum_stride) {
  const int at_once =
      std::max(kBytesAtOnce / (in.v_dim * static_cast<int>(sizeof(Storage<kType>))), kCellTile);
  for (const Segment& segment : in.segments) {
    const int end = std::min(range.end, segment.end);
    for (int j = std::max(range.begin, segment.begin); j < end; j += at_once) {
      const std::int64_t cell = std::int64_t{segment.cell} + (j - segment.begin);
      WeightCells<kType, R, NV>(in, cell, weights + j, std::min(at_once, end - j), sums,
                                sum_stride);
    }
  }
}

// together(range, weights, sums) for what all rows see, alone(…) for each row's rest.
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

template <DType kType, int R>
void WeightSegments(const LayerKv& layer, int kv_head, const WeightedRows& rows,
                    const StreamLink& stream) {
  constexpr int kVectors = R == 8 ? 2 : kManyRegisters || R <= 2 ? 4 : 2;
  const int v_dim = layer.shape.v_dim;
  const auto* const head =
      reinterpret_cast<const Storage<kType>*>(layer.v) + HeadValues(layer, kv_head);
  const HeadCells<kType> cells{head, static_cast<std::size_t>(v_dim), v_dim, rows.segments, stream};
  WeighInParts<R>(
      rows,
      [&](RowRange range, const float* weights, float* sums) HWY_ATTR {
        WeightRange<kType, R, kVectors>(cells, range, weights, sums, rows.sum_stride);
      },
      [&](RowRange range, const float* weights, float* sums)
          HWY_ATTR { WeightRange<kType, 1, 4>(cells, range, weights, sums, rows.sum_stride); });
}

// `workspace` holds BlockValuesFloats.
template <int R>
void WeightAllSegments(const LayerKv& layer, int kv_head, const WeightedRows& rows,
                       float* workspace, Prefetcher* prefetcher) {
  const auto blocks = [&] {
    const auto* const v = reinterpret_cast<const std::uint8_t*>(layer.v);
    return ValueTiles{v + BlockHeadValues(layer, kv_head), layer.shape.v_dim,
                      CodeOffset(layer.v_type), &prefetcher->split};
  };
  switch (layer.v_type) {
    case DType::kF16:
      return WeightSegments<DType::kF16, R>(layer, kv_head, rows, prefetcher->values);
    case DType::kBF16:
      return WeightSegments<DType::kBF16, R>(layer, kv_head, rows, prefetcher->values);
    case DType::kQ8_0:
      return WeightBlocks<DType::kQ8_0, R, Stream::kMemory>(blocks(), rows, workspace);
    case DType::kQ4_0:
      return WeightBlocks<DType::kQ4_0, R, Stream::kMemory>(blocks(), rows, workspace);
    default: return WeightSegments<DType::kF32, R>(layer, kv_head, rows, prefetcher->values);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
