// Gathers one split's keys and values of block types, from any cells, into the form that
// attention_prefill.cc multiplies: indexed by position. Codes stay codes, a byte each, in tiles of
// sixteen positions with the layout of q8_0's tiles of cells (kv_blocks.h). Positions that no
// segment holds keep their old contents.

// Included once per target.
#if defined(KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_
#undef KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_
#else
#define KVCACHE_BACKEND_CPU_ATTENTION_BLOCK_WIDEN_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <span>

#include "backend/cpu/attention/attention_split.h"
#include "backend/cpu/attention/attention_widen-inl.h"
#include "backend/cpu/common/kv_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu {
namespace HWY_NAMESPACE {

// Bytes of a tile of sixteen positions.
constexpr std::int64_t WideTileBytes(std::int64_t dim) {
  return BlockTileBytes(DType::kQ8_0, dim);
}

// Copies `bytes` bytes of codes from a tile of kType to a tile of bytes. A block of q4_0 has its
// first 16 values in the lower nibbles, which go to the first half of the block's bytes, and the
// other 16 in the upper nibbles.
template <DType kType>
HWY_INLINE void CopyCodes(const std::uint8_t* from, std::int64_t bytes, std::uint8_t* to) {
  if constexpr (kType == DType::kQ8_0) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  } else {
    constexpr std::int64_t kHalf = kKvBlock / 2 * kCellTile;
    for (std::int64_t i = 0; i < bytes; ++i) {
      to[i] = from[i] & 15;
      to[i + kHalf] = from[i] >> 4;
    }
  }
}

template <DType kType>
void CopyTile(const std::uint8_t* tile, std::int64_t dim, std::uint8_t* to) {
  constexpr std::int64_t kFrom = kCellTile * CodeBytes(kType, kKvBlock);
  constexpr std::int64_t kTo = kCellTile * kKvBlock;
  for (std::int64_t b = 0; b < dim / kKvBlock; ++b) {
    CopyCodes<kType>(tile + b * kFrom, kFrom, to + b * kTo);
  }
  std::memcpy(to + TileScales(DType::kQ8_0, dim), tile + TileScales(kType, dim),
              static_cast<std::size_t>(dim / kKvBlock * kCellTile * 2));
}

enum class BlockPart : std::uint8_t { kKeys, kValues };

// The offset of code byte i of a cell's block in a tile. Keys have four neighbouring codes there,
// values one.
template <DType kType, BlockPart kPart>
constexpr std::int64_t CodesAt(std::int64_t block, std::int64_t i, std::int64_t lane) {
  constexpr std::int64_t kBytes = CodeBytes(kType, kKvBlock);
  return kPart == BlockPart::kKeys ? KeyCodes((block * kBytes + i) / 4, lane)
                                   : ValueCode(kType, block, i, lane);
}

// Copies one cell of a tile to one lane of another tile.
template <DType kType, BlockPart kPart>
void CopyCell(const std::uint8_t* tile, std::int64_t lane, std::int64_t dim, std::uint8_t* to,
              std::int64_t to_lane) {
  constexpr std::int64_t kTogether = kPart == BlockPart::kKeys ? 4 : 1;
  for (std::int64_t b = 0; b < dim / kKvBlock; ++b) {
    for (std::int64_t i = 0; i < CodeBytes(kType, kKvBlock); i += kTogether) {
      CopyCodes<kType>(tile + CodesAt<kType, kPart>(b, i, lane), kTogether,
                       to + CodesAt<DType::kQ8_0, kPart>(b, i, to_lane));
    }
    std::memcpy(to + BlockScale(DType::kQ8_0, dim, b, to_lane),
                tile + BlockScale(kType, dim, b, lane), 2);
  }
}

template <DType kType, BlockPart kPart>
void GatherTiles(const std::uint8_t* head, std::int64_t dim, std::span<const Segment> segments,
                 std::uint8_t* tiles) {
  for (const Segment& segment : segments) {
    for (int position = segment.begin; position < segment.end;) {
      const std::int64_t cell = std::int64_t{segment.cell} + (position - segment.begin);
      const std::uint8_t* const tile = head + BlockTile(kType, dim, cell);
      std::uint8_t* const to = tiles + position / kCellTile * WideTileBytes(dim);
      if (cell % kCellTile == 0 && position % kCellTile == 0) {
        CopyTile<kType>(tile, dim, to);
        position += kCellTile;
      } else {
        CopyCell<kType, kPart>(tile, cell % kCellTile, dim, to, position % kCellTile);
        ++position;
      }
    }
  }
}

template <BlockPart kPart>
void GatherBlocks(const WideSplit& wide, std::span<const Segment> segments) {
  const LayerKv& layer = *wide.layer;
  constexpr bool kKeys = kPart == BlockPart::kKeys;
  const std::byte* const head = kKeys ? layer.k + BlockHeadKeys(layer, wide.kv_head)
                                      : layer.v + BlockHeadValues(layer, wide.kv_head);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(head);
  auto* const tiles = reinterpret_cast<std::uint8_t*>(kKeys ? wide.keys : wide.values);
  const std::int64_t dim = kKeys ? layer.shape.k_dim : layer.shape.v_dim;
  if ((kKeys ? layer.k_type : layer.v_type) == DType::kQ8_0) {
    GatherTiles<DType::kQ8_0, kPart>(from, dim, segments, tiles);
  } else {
    GatherTiles<DType::kQ4_0, kPart>(from, dim, segments, tiles);
  }
}

inline void WidenSplitKeys(const WideSplit& wide, std::span<const Segment> segments) {
  if (!IsKvBlockType(wide.layer->k_type)) return WidenAllKeys(wide, segments);
  GatherBlocks<BlockPart::kKeys>(wide, segments);
}

inline void WidenSplitValues(const WideSplit& wide, std::span<const Segment> segments) {
  if (!IsKvBlockType(wide.layer->v_type)) return WidenAllValues(wide, segments);
  GatherBlocks<BlockPart::kValues>(wide, segments);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
