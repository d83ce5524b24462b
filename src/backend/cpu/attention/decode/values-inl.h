// Decode attention's weighted sums, for every target: the sums of R rows over the values of all
// cells of a history's segments, read in their storage type and layout.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_DECODE_VALUES_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/attention/block/values-inl.h"
#include "backend/cpu/attention/decode/types-inl.h"

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Bytes of neighbouring cells' values that are processed together. Several passes go over them:
// they have to stay in the first-level cache, and each pass has to be long enough for the
// hardware's prefetchers.
inline constexpr int kBytesAtOnce = 16384;

// A head's values: those of cell c begin at values + c × stride.
template <DType kType>
struct HeadCells {
  const Storage<kType>* values;
  std::size_t stride;
  int v_dim;
  std::span<const Segment> segments;
  StreamLink stream;
};

// WeightValues over all vectors of `keys` neighbouring cells. If v_dim is no multiple of the lanes,
// the last vector overlaps the one before; its sums have lanes of their own.
template <DType kType, int R, int NV>
void WeightCells(const HeadCells<kType>& in, std::int64_t cell, const float* weights, int keys,
                 float* sums, std::size_t sum_stride) {
  const Storage<kType>* const v = in.values + static_cast<std::size_t>(cell) * in.stride;
  const int vectors = (in.v_dim + kLanes - 1) / kLanes;
  if (in.v_dim < kLanes) {
    for (int i = 0; i < in.v_dim; ++i) {
      WeightValues<hn::CappedTag<float, 1>, kType, R, 1, 0>(v + i, in.stride, 0, weights, keys,
                                                            sums + i, sum_stride);
    }
    return;
  }
  constexpr int kLines = (NV * kLanes * static_cast<int>(sizeof(*v)) + 63) / 64;
  // Each pass over the cells prefetches its share of the cells that follow.
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
    WeightValues<DF, kType, R, NV, kLines>(v + first, in.stride,
                                           static_cast<std::size_t>(last - first), weights, keys,
                                           sums + i * kLanes, sum_stride, prefetch(i, NV));
  }
  for (; i < vectors; ++i) {
    const int first = std::min(i * kLanes, in.v_dim - kLanes);
    WeightValues<DF, kType, R, 1, 1>(v + first, in.stride, 0, weights, keys, sums + i * kLanes,
                                     sum_stride, prefetch(i, 1));
  }
}

// WeightCells over the positions of `range` that are in segments, ascending.
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

// WeightSegments for block types. `workspace` holds BlockValuesFloats.
template <DType kType, int R>
void WeightBlockSegments(const LayerKv& layer, int kv_head, const WeightedRows& rows,
                         float* workspace, SplitPrefetch* prefetch) {
  const auto* const v = reinterpret_cast<const std::uint8_t*>(layer.v);
  const ValueTiles values{v + BlockHeadValues(layer, kv_head), layer.shape.v_dim, CodeOffset(kType),
                          prefetch};
  WeightBlocks<kType, R, Stream::kMemory>(values, rows, workspace);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
