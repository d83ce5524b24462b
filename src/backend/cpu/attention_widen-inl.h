// One split's keys and values of one head, widened to f32 and indexed by position, from any
// layout and any cells: the form that attention_many.cc multiplies.
//
//   keys    [kSplitPositions / W][k_dim][W]     W positions side by side
//   values  [padded v_dim / W][kSplitPositions][W]     W values side by side
//
// with W two vectors' lanes. What lies at positions that no segment holds is left from before.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_WIDEN_INL_H_
#endif

#include <algorithm>
#include <span>

#include "backend/cpu/attention_split.h"
#include "backend/cpu/kv_convert-inl.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

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

// Lanes of a tile at the positions from `position` on; those before `begin` are skipped.
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

// Rows of values: the tiled and the token-major layout differ in where a cell's row is.
template <DType kType>
void WidenValueRows(const WideSplit& wide, const Segment& segment) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  const LayerKv& layer = *wide.layer;
  const std::int64_t v_dim = layer.shape.v_dim;
  const bool tiled = layer.layout == KvLayout::kTiled;
  const std::int64_t first = tiled ? HeadValues(layer, wide.kv_head) : wide.kv_head * v_dim;
  const std::int64_t stride = tiled ? v_dim : v_dim * layer.shape.kv_heads;
  const auto* row =
      reinterpret_cast<const Storage<kType>*>(layer.v) + first + segment.cell * stride;
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

template <DType kType>
void WidenValues(const WideSplit& wide, std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    if (wide.layer->v_transposed) {
      WidenTransposedValues<kType>(wide, segment);
    } else {
      WidenValueRows<kType>(wide, segment);
    }
  }
}

inline void Widen(const WideSplit& wide, std::span<const Segment> segments) {
  switch (wide.layer->k_type) {
    case DType::kF16: WidenKeys<DType::kF16>(wide, segments); break;
    case DType::kBF16: WidenKeys<DType::kBF16>(wide, segments); break;
    default: WidenKeys<DType::kF32>(wide, segments); break;
  }
  switch (wide.layer->v_type) {
    case DType::kF16: WidenValues<DType::kF16>(wide, segments); break;
    case DType::kBF16: WidenValues<DType::kBF16>(wide, segments); break;
    default: WidenValues<DType::kF32>(wide, segments); break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
