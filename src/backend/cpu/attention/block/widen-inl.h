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

// ---- The values within latents: codes of keys' tiles, in the layout of values' tiles

// Writes the codes of sixteen positions, from a tile of keys. Sixteen bytes are four values of each of four cells
// there, and four cells of each of four values here.
inline void TransposeCodes(const std::uint8_t* keys, std::int64_t v_dim, std::uint8_t* values) {
  const hn::FixedTag<std::uint8_t, 16> d8;
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                          2, 6, 10, 14, 3, 7, 11, 15};
  const auto order = hn::Load(d8, kOrder);
  for (std::int64_t half = 0; half < v_dim / 16; ++half, keys += 256, values += 256) {
    KVCACHE_UNROLL
    for (int group = 0; group < 4; ++group) {
      KVCACHE_UNROLL
      for (int quad = 0; quad < 4; ++quad) {
        const auto four = hn::LoadU(d8, keys + group * 64 + quad * 16);
        hn::StoreU(hn::TableLookupBytes(four, order), d8, values + quad * 64 + group * 16);
      }
    }
  }
}

// Gathers the codes of a split's values, and the scales of their first blocks, in tiles of sixteen positions.
// Behind the tiles, wide.values has memory for the keys of a tile whose positions are in several cells' tiles.
inline void GatherLatents(const WideSplit& wide, std::span<const Segment> segments) {
  const LayerKv& layer = *wide.layer;
  const std::int64_t v_dim = layer.shape.v_dim;
  const std::int64_t k_dim = layer.shape.k_dim;
  const auto* const head =
      reinterpret_cast<const std::uint8_t*>(layer.k) + BlockHeadKeys(layer, wide.kv_head);
  auto* const tiles = reinterpret_cast<std::uint8_t*>(wide.values);
  std::uint8_t* const staged = tiles + kSplitPositions / kCellTile * WideTileBytes(v_dim);
  int waiting = -1;  // the tile whose codes are in `staged`
  const auto finish = [&] {
    if (waiting >= 0) TransposeCodes(staged, v_dim, tiles + waiting * WideTileBytes(v_dim));
    waiting = -1;
  };
  for (const Segment& segment : segments) {
    for (int position = segment.begin; position < segment.end;) {
      const std::int64_t cell = std::int64_t{segment.cell} + (position - segment.begin);
      const auto from = static_cast<int>(cell % kCellTile);
      const int to = position % kCellTile;
      const int count = std::min({segment.end - position, kCellTile - from, kCellTile - to});
      const int tile = position / kCellTile;
      const std::uint8_t* const keys = head + BlockTile(DType::kQ8_0, k_dim, cell);
      std::memcpy(tiles + tile * WideTileBytes(v_dim) + BlockScale(DType::kQ8_0, v_dim, 0, to),
                  keys + BlockScale(DType::kQ8_0, k_dim, 0, from),
                  static_cast<std::size_t>(count) * 2);
      if (tile != waiting) finish();
      if (count == kCellTile) {
        TransposeCodes(keys, v_dim, tiles + tile * WideTileBytes(v_dim));
      } else {
        for (std::int64_t line = 0; line < v_dim / kKeyGroup; ++line) {
          std::memcpy(staged + KeyCodes(line, to), keys + KeyCodes(line, from),
                      static_cast<std::size_t>(count) * 4);
        }
        waiting = tile;
      }
      position += count;
    }
  }
  finish();
}

inline void WidenSplitKeys(const WideSplit& wide, std::span<const Segment> segments) {
  if (!IsKvBlockType(wide.layer->k_type)) return WidenAllKeys(wide, segments);
  GatherBlocks<BlockPart::kKeys>(wide, segments);
}

inline void WidenSplitValues(const WideSplit& wide, std::span<const Segment> segments) {
  if (!IsKvBlockType(wide.layer->v_type)) return WidenAllValues(wide, segments);
  if (HoldsLatents(*wide.layer)) return GatherLatents(wide, segments);
  GatherBlocks<BlockPart::kValues>(wide, segments);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
