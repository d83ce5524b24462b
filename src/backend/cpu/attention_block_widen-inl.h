// One split's keys and values of block types, indexed by position, from any cells: the form that
// attention_many.cc multiplies. Keys stay codes, a byte each, and become tiles of sixteen
// positions laid out as q8_0's tiles of cells are (kv_blocks.h); values become f32, as
// attention_widen-inl.h has them. What lies at positions that no segment holds is left from before.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "backend/cpu/attention_block_values-inl.h"
#include "backend/cpu/attention_split.h"
#include "backend/cpu/attention_widen-inl.h"
#include "backend/cpu/kv_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// A tile of a split's keys as above.
constexpr std::int64_t WideTileBytes(std::int64_t k_dim) {
  return BlockTileBytes(DType::kQ8_0, k_dim);
}

// `bytes` of codes from where they lie in a tile to where they go. Of q4_0 four lines hold what
// eight do, groups 0 to 3 in the lower halves and 4 to 7 in the upper.
template <DType kType>
HWY_INLINE void CopyCodes(const std::uint8_t* from, std::int64_t bytes, std::uint8_t* to) {
  if constexpr (kType == DType::kQ8_0) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  } else {
    constexpr std::int64_t kHalf = 4 * 4 * kCellTile;
    for (std::int64_t i = 0; i < bytes; ++i) {
      to[i] = from[i] & 15;
      to[i + kHalf] = from[i] >> 4;
    }
  }
}

template <DType kType>
void CopyKeyTile(const std::uint8_t* tile, std::int64_t k_dim, std::uint8_t* to) {
  constexpr std::int64_t kFrom = kCellTile * CodeBytes(kType, kKvBlock);
  constexpr std::int64_t kTo = kCellTile * kKvBlock;
  for (std::int64_t b = 0; b < k_dim / kKvBlock; ++b) {
    CopyCodes<kType>(tile + b * kFrom, kFrom, to + b * kTo);
  }
  std::memcpy(to + KeyScale(DType::kQ8_0, k_dim, 0, 0), tile + KeyScale(kType, k_dim, 0, 0),
              static_cast<std::size_t>(k_dim / kKvBlock * kCellTile * 2));
}

// One cell of a tile to one lane of another.
template <DType kType>
void CopyKey(const std::uint8_t* tile, std::int64_t lane, std::int64_t k_dim, std::uint8_t* to,
             std::int64_t to_lane) {
  constexpr std::int64_t kLines = CodeBytes(kType, kKvBlock) / 4;
  for (std::int64_t b = 0; b < k_dim / kKvBlock; ++b) {
    for (std::int64_t g = 0; g < kLines; ++g) {
      CopyCodes<kType>(tile + KeyCodes(b * kLines + g, lane), 4, to + KeyCodes(b * 8 + g, to_lane));
    }
    std::memcpy(to + KeyScale(DType::kQ8_0, k_dim, b, to_lane),
                tile + KeyScale(kType, k_dim, b, lane), 2);
  }
}

template <DType kType>
void WidenBlockKeys(const WideSplit& wide, std::span<const Segment> segments) {
  const LayerKv& layer = *wide.layer;
  const std::int64_t k_dim = layer.shape.k_dim;
  const auto* const head =
      reinterpret_cast<const std::uint8_t*>(layer.k) + BlockHeadKeys(layer, wide.kv_head);
  auto* const keys = reinterpret_cast<std::uint8_t*>(wide.keys);
  for (const Segment& segment : segments) {
    for (int position = segment.begin; position < segment.end;) {
      const std::int64_t cell = std::int64_t{segment.cell} + (position - segment.begin);
      const std::uint8_t* const tile = head + BlockTile(kType, k_dim, cell);
      std::uint8_t* const to = keys + position / kCellTile * WideTileBytes(k_dim);
      if (cell % kCellTile == 0 && position % kCellTile == 0) {
        CopyKeyTile<kType>(tile, k_dim, to);
        position += kCellTile;
      } else {
        CopyKey<kType>(tile, cell % kCellTile, k_dim, to, position % kCellTile);
        ++position;
      }
    }
  }
}

template <DType kType>
void WidenBlockValues(const WideSplit& wide, std::span<const Segment> segments) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  const LayerKv& layer = *wide.layer;
  const std::int64_t v_dim = layer.shape.v_dim;
  const auto* const head =
      reinterpret_cast<const std::uint8_t*>(layer.v) + BlockHeadValues(layer, wide.kv_head);
  for (const Segment& segment : segments) {
    for (int position = segment.begin; position < segment.end; ++position) {
      const std::int64_t cell = std::int64_t{segment.cell} + (position - segment.begin);
      const std::uint8_t* const tile = head + BlockTile(kType, v_dim, cell);
      const std::int64_t lane = cell % kCellTile;
      for (std::int64_t b = 0; b < v_dim / kKvBlock; ++b) {
        const auto* const scale =
            reinterpret_cast<const std::uint16_t*>(tile + ValueScale(kType, v_dim, b, lane));
        VF values[kBlockRegs];
        const float factor = hn::GetLane(WidenF16(d1, scale));
        LoadBlock<kType>(tile + ValueCodes(kType, v_dim, lane) + b * CodeBytes(kType, kKvBlock),
                         {factor, factor * BlockScale::kOffset}, values);
        KVCACHE_UNROLL
        for (int i = 0; i < kBlockRegs; ++i) {
          hn::Store(values[i], d, wide.Value(position, b * kKvBlock + i * kLanes));
        }
      }
    }
  }
}

inline void WidenSplitKeys(const WideSplit& wide, std::span<const Segment> segments) {
  switch (wide.layer->k_type) {
    case DType::kQ8_0: return WidenBlockKeys<DType::kQ8_0>(wide, segments);
    case DType::kQ4_0: return WidenBlockKeys<DType::kQ4_0>(wide, segments);
    default: return WidenAllKeys(wide, segments);
  }
}

inline void WidenSplitValues(const WideSplit& wide, std::span<const Segment> segments) {
  switch (wide.layer->v_type) {
    case DType::kQ8_0: return WidenBlockValues<DType::kQ8_0>(wide, segments);
    case DType::kQ4_0: return WidenBlockValues<DType::kQ4_0>(wide, segments);
    default: return WidenAllValues(wide, segments);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
