// Widens one split's keys and values of one head to f32, from any layout and any cells, into the
// form that attention_prefill.cc multiplies: indexed by position.
//
//   keys    [kSplitPositions / W][k_dim][W]          W positions side by side
//   values  [padded v_dim / W][kSplitPositions][W]   W values side by side
//
// W is the lanes of two vectors. Positions that no segment holds keep their old contents.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention/attention_micro-inl.h"
#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/common/kv_convert-inl.h"
#include "backend/cpu/simd/highway-inl.h"
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kWide = 2 * kLanes;  // W above

struct WideSplit {
  const LayerKv* layer;
  int kv_head;
  float* keys;
  float* values;
  int v_padded;  // a multiple of kWide

  float* Key(int position, std::int64_t d) const {
    return keys + (position / kWide * std::int64_t{layer->shape.k_dim} + d) * kWide +
           position % kWide;
  }
  float* Value(int position, std::int64_t d) const {
    return values + (d / kWide * kSplitPositions + position) * kWide + d % kWide;
  }
};

// Widens the keys of one tile, whose lane 0 is at `position`, for the positions in [begin, end).
template <DType kType>
void WidenKeyTile(const WideSplit& wide, const Storage<kType>* tile, int position, int begin,
                  int end) {
  const DF d;
  const int k_dim = wide.layer->shape.k_dim;
  const bool whole = position >= begin && position % kCellTile == 0;
  for (int i = 0; i < k_dim; ++i) {
    if (whole) {
      KVCACHE_UNROLL
      for (int lane = 0; lane < kCellTile; lane += kLanes) {
        hn::StoreU(LoadWide<kType>(d, tile + i * kCellTile + lane), d,
                   wide.Key(position + lane, i));
      }
      continue;
    }
    HWY_ALIGN float lanes[kCellTile];
    WidenRow<kType>(tile + i * kCellTile, kCellTile, lanes);
    for (int p = std::max(position, begin); p < std::min(position + kCellTile, end); ++p) {
      *wide.Key(p, i) = lanes[p - position];
    }
  }
}

template <DType kType>
void WidenTiledKeys(const WideSplit& wide, const Segment& segment) {
  const LayerKv& layer = *wide.layer;
  const Storage<kType>* tile = reinterpret_cast<const Storage<kType>*>(layer.k) +
                               HeadKeys(layer, wide.kv_head) + KeyTile(layer, segment.cell);
  for (int position = segment.begin - segment.cell % kCellTile; position < segment.end;
       position += kCellTile, tile += layer.shape.k_dim * kCellTile) {
    WidenKeyTile<kType>(wide, tile, position, segment.begin, segment.end);
  }
}

template <DType kType>
void WidenPlainKeys(const WideSplit& wide, const Segment& segment) {
  const LayerKv& layer = *wide.layer;
  const std::int64_t k_dim = layer.shape.k_dim;
  const auto* const keys = reinterpret_cast<const Storage<kType>*>(layer.k);
  const hn::CappedTag<float, 1> d1;
  for (int position = segment.begin; position < segment.end; ++position) {
    const std::int64_t cell = segment.cell + (position - segment.begin);
    const auto* const key = keys + (cell * layer.shape.kv_heads + wide.kv_head) * k_dim;
    for (std::int64_t i = 0; i < k_dim; ++i) {
      *wide.Key(position, i) = hn::GetLane(LoadWide<kType>(d1, key + i));
    }
  }
}

template <DType kType>
void WidenKeys(const WideSplit& wide, std::span<const Segment> segments) {
  const bool tiled = wide.layer->layout == KvLayout::kTiled;
  for (const Segment& segment : segments) {
    if (tiled) {
      WidenTiledKeys<kType>(wide, segment);
    } else {
      WidenPlainKeys<kType>(wide, segment);
    }
  }
}

// The rows of a head's values, one per cell. With V in K they are the first part of the keys' rows.
template <DType kType>
struct ValueRows {
  const Storage<kType>* first;
  std::int64_t stride;

  ValueRows(const LayerKv& layer, int kv_head) {
    const bool tiled = layer.layout == KvLayout::kTiled;
    const std::int64_t dim = layer.shape.v_in_k ? layer.shape.k_dim : layer.shape.v_dim;
    stride = tiled ? dim : dim * layer.shape.kv_heads;
    first = reinterpret_cast<const Storage<kType>*>(layer.shape.v_in_k ? layer.k : layer.v) +
            (tiled ? HeadValues(layer, kv_head) : kv_head * dim);
  }
};

template <DType kType>
void WidenValueRows(const WideSplit& wide, const Segment& segment) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  const std::int64_t v_dim = wide.layer->shape.v_dim;
  const ValueRows<kType> rows(*wide.layer, wide.kv_head);
  const std::int64_t stride = rows.stride;
  const auto* row = rows.first + segment.cell * stride;
  for (int position = segment.begin; position < segment.end; ++position, row += stride) {
    std::int64_t i = 0;
    for (; i + kLanes <= v_dim; i += kLanes) {
      hn::StoreU(LoadWide<kType>(d, row + i), d, wide.Value(position, i));
    }
    for (; i < v_dim; ++i) *wide.Value(position, i) = hn::GetLane(LoadWide<kType>(d1, row + i));
  }
}

template <DType kType>
void WidenTransposedValues(const WideSplit& wide, const Segment& segment) {
  const LayerKv& layer = *wide.layer;
  const hn::CappedTag<float, 1> d1;
  const auto* row = reinterpret_cast<const Storage<kType>*>(layer.v) +
                    HeadValues(layer, wide.kv_head) + segment.cell;
  for (int i = 0; i < layer.shape.v_dim; ++i, row += layer.cells) {
    for (int position = segment.begin; position < segment.end; ++position) {
      *wide.Value(position, i) = hn::GetLane(LoadWide<kType>(d1, row + (position - segment.begin)));
    }
  }
}

// Transposes four values of each cell of a tile of keys, from lanes of cells to rows of values, by
// 4 × 4 transposes within each 128 bits.
template <DType kType>
HWY_INLINE void TransposeFour(const Storage<kType>* HWY_RESTRICT keys, float* HWY_RESTRICT rows) {
  const DF d;
  const hn::Repartition<std::uint64_t, DF> d64;
  const auto pairs = [&](VF v) HWY_ATTR { return hn::BitCast(d64, v); };
  KVCACHE_UNROLL
  for (int lane = 0; lane < kCellTile; lane += kLanes) {
    const VF a0 = LoadWide<kType>(d, keys + lane);
    const VF a1 = LoadWide<kType>(d, keys + kCellTile + lane);
    const VF a2 = LoadWide<kType>(d, keys + 2 * kCellTile + lane);
    const VF a3 = LoadWide<kType>(d, keys + 3 * kCellTile + lane);
    const auto lower01 = pairs(hn::InterleaveLower(d, a0, a1));
    const auto upper01 = pairs(hn::InterleaveUpper(d, a0, a1));
    const auto lower23 = pairs(hn::InterleaveLower(d, a2, a3));
    const auto upper23 = pairs(hn::InterleaveUpper(d, a2, a3));
    // [4][kLanes / 4][4]: the first cell of each 128 bits, then the second of each, …
    float* const to = rows + lane * 4;
    hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, lower01, lower23)), d, to);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, lower01, lower23)), d, to + kLanes);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, upper01, upper23)), d, to + 2 * kLanes);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, upper01, upper23)), d, to + 3 * kLanes);
  }
}

// Widens the values inside one tile of keys, whose lane 0 is at `position`, for the positions in
// [begin, end).
template <DType kType>
void WidenTileValues(const WideSplit& wide, const Storage<kType>* tile, int position, int begin,
                     int end) {
  const hn::CappedTag<float, 1> d1;
  const int v_dim = wide.layer->shape.v_dim;
  const int first = std::max(begin - position, 0);
  const int last = std::min(end - position, kCellTile);
  HWY_ALIGN float rows[4 * kCellTile];
  int i = 0;
  for (; i + 4 <= v_dim; i += 4) {
    TransposeFour<kType>(tile + i * kCellTile, rows);
    for (int cell = first; cell < last; ++cell) {
      const int in_vector = cell % kLanes;
      std::copy_n(rows + cell / kLanes * kLanes * 4 + in_vector % 4 * kLanes + in_vector / 4 * 4, 4,
                  wide.Value(position + cell, i));
    }
  }
  for (; i < v_dim; ++i) {
    for (int cell = first; cell < last; ++cell) {
      *wide.Value(position + cell, i) =
          hn::GetLane(LoadWide<kType>(d1, tile + i * kCellTile + cell));
    }
  }
}

template <DType kType>
void WidenValuesInTiles(const WideSplit& wide, const Segment& segment) {
  const LayerKv& layer = *wide.layer;
  const Storage<kType>* tile = reinterpret_cast<const Storage<kType>*>(layer.k) +
                               HeadKeys(layer, wide.kv_head) + KeyTile(layer, segment.cell);
  for (int position = segment.begin - segment.cell % kCellTile; position < segment.end;
       position += kCellTile, tile += layer.shape.k_dim * kCellTile) {
    WidenTileValues<kType>(wide, tile, position, segment.begin, segment.end);
  }
}

template <DType kType>
void WidenValues(const WideSplit& wide, std::span<const Segment> segments) {
  const bool in_tiles = wide.layer->shape.v_in_k && wide.layer->layout == KvLayout::kTiled;
  for (const Segment& segment : segments) {
    if (in_tiles) {
      WidenValuesInTiles<kType>(wide, segment);
    } else if (wide.layer->v_transposed) {
      WidenTransposedValues<kType>(wide, segment);
    } else {
      WidenValueRows<kType>(wide, segment);
    }
  }
}

inline void WidenAllKeys(const WideSplit& wide, std::span<const Segment> segments) {
  switch (wide.layer->k_type) {
    case DType::kF16: return WidenKeys<DType::kF16>(wide, segments);
    case DType::kBF16: return WidenKeys<DType::kBF16>(wide, segments);
    default: return WidenKeys<DType::kF32>(wide, segments);
  }
}

inline void WidenAllValues(const WideSplit& wide, std::span<const Segment> segments) {
  switch (wide.layer->v_type) {
    case DType::kF16: return WidenValues<DType::kF16>(wide, segments);
    case DType::kBF16: return WidenValues<DType::kBF16>(wide, segments);
    default: return WidenValues<DType::kF32>(wide, segments);
  }
}

// Adds the weighted sums of R rows over the positions of `range` that are in segments, W values at
// a time. Row r has v_padded sums at sums + r × sum_stride.
template <int R>
void WeightWide(const WideSplit& wide, std::span<const Segment> segments, RowRange range,
                const float* weights, float* sums, std::size_t sum_stride) {
  for (const Segment& segment : segments) {
    const int begin = std::max(range.begin, segment.begin);
    const int end = std::min(range.end, segment.end);
    if (begin >= end) continue;
    for (int d = 0; d < wide.v_padded; d += kWide) {
      WeightValues<DF, DType::kF32, R, kWide / kLanes, 0>(
          wide.Value(begin, d), kWide, kLanes, weights + begin, end - begin, sums + d, sum_stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
