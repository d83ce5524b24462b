// Where the keys and values of block types lie in KvLayout::kTiled: blocks of 32 values along a
// head's dims, with an f16 scale each. A tile is 16 cells of one head; all its codes come first,
// then all its scales, in BytesOf(type, 16 × dim) bytes:
//
//   K q8_0   u8  codes[k_dim/32][8][16 cells][4]    byte (b, g, cell, i): value 32b + 4g + i
//   K q4_0   u8  codes[k_dim/32][4][16 cells][4]    its low half likewise, its high half 16 on
//   V q8_0   u8  codes[v_dim/32][2][4][16][4]       byte (b, h, q, i, c): cell 4q + c, value
//                                                   32b + 16h + i
//   V q4_0   u8  codes[v_dim/32][4][16][4]          byte (b, q, i, c): its low half as with h = 0,
//                                                   its high half as with h = 1
//   scales   f16 scales[dim/32][16 cells]           of all
//
// A code is value/scale + 128, of q4_0 value/scale + 8.
//
// So a 32-bit lane of codes is what one step of a dot product takes: of keys four values of a cell,
// as scores sum over values; of values four cells, as weighted sums are over cells.
// Tiles follow one another by cell, heads are outermost: as the other types' (kv_storage.h).
//
// Keys lie turned: a head's key is multiplied by an orthonormal Hadamard matrix before it is
// quantised (hadamard-inl.h), which spreads what stands out in one value over all of them.
// Attention turns the query in the same way, and their product is as it was.
//
// Thread safety: free functions without state. Units: bytes, unless a name says otherwise.
// REQUIRES of all that take a type and dims: IsKvBlockType, and multiples of kKvBlock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/kv.h"

namespace kvcache::cpu {

// Values that share a scale, for all types here.
inline constexpr std::int64_t kKvBlock = 32;
// Dims of a head that one line of 16 cells × 4 bytes holds, as q8_0 (as q4_0 there are two such
// groups in a line).
inline constexpr std::int64_t kKeyGroup = 4;

constexpr bool IsKvBlockType(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0;
}

// Where a head's stream of tiles begins within LayerKv::k or v, of any type.
constexpr std::int64_t BlockHeadKeys(const LayerKv& layer, std::int64_t kv_head) {
  return BytesOf(layer.k_type, kv_head * layer.cells * layer.shape.k_dim);
}
constexpr std::int64_t BlockHeadValues(const LayerKv& layer, std::int64_t kv_head) {
  return BytesOf(layer.v_type, kv_head * layer.cells * layer.shape.v_dim);
}

// The size of a tile, and where within its head the tile of cell `cell` begins; of any type.
constexpr std::int64_t BlockTileBytes(DType type, std::int64_t dim) {
  return BytesOf(type, kCellTile * dim);
}
constexpr std::int64_t BlockTile(DType type, std::int64_t dim, std::int64_t cell) {
  return cell / kCellTile * BlockTileBytes(type, dim);
}

// Below, offsets from the beginning of a tile. `lane` is the cell's index in the tile.

// Codes of `dim` values of one cell, and of the whole tile: the scales begin there.
constexpr std::int64_t CodeBytes(DType type, std::int64_t dim) {
  return type == DType::kQ8_0 ? dim : dim / 2;
}
constexpr std::int64_t TileScales(DType type, std::int64_t dim) {
  return kCellTile * CodeBytes(type, dim);
}

// A key's four bytes in line `line`, of CodeBytes(type, k_dim) / 4 lines. q8_0: line g has
// values 4g to 4g + 3. q4_0: line 4b + g has values 32b + 4g and 32b + 16 + 4g, and three after
// each.
constexpr std::int64_t KeyCodes(std::int64_t line, std::int64_t lane) {
  return (line * kCellTile + lane) * 4;
}

// Byte i of a value's block, of CodeBytes(type, kKvBlock). A line of 64 bytes is 16 of them, of
// four cells.
constexpr std::int64_t ValueCode(DType type, std::int64_t block, std::int64_t i,
                                 std::int64_t lane) {
  const std::int64_t line = (block * CodeBytes(type, kKvBlock) + i) / 16 * (kCellTile / 4);
  return (line + lane / 4) * 64 + i % 16 * 4 + lane % 4;
}

// Of a key or a value.
constexpr std::int64_t BlockScale(DType type, std::int64_t dim, std::int64_t block,
                                  std::int64_t lane) {
  return TileScales(type, dim) + (block * kCellTile + lane) * 2;
}

// The largest power of two that divides a key's dims: the size of the matrix that turns it, as
// often as the key has room for it. At least kKvBlock.
constexpr std::int64_t HadamardSize(std::int64_t k_dim) {
  return k_dim & -k_dim;
}

}  // namespace kvcache::cpu
