// The layout of keys and values of block types in KvLayout::kTiled: blocks of 32 values along a
// head's dims, with an f16 scale each. A tile is 16 cells of one head: first all its codes, then
// all its scales, in BytesOf(type, 16 × dim) bytes:
//
//   K q8_0   u8  codes[k_dim/32][8][16 cells][4]    byte (b, g, cell, i): value 32b + 4g + i
//   K q4_0   u8  codes[k_dim/32][4][16 cells][4]    low half: the same value; high half: the one
//                                                   16 further on
//   V q8_0   u8  codes[v_dim/32][2][4][16][4]       byte (b, h, q, i, c): cell 4q + c, value
//                                                   32b + 16h + i
//   V q4_0   u8  codes[v_dim/32][4][16][4]          byte (b, q, i, c): low half as with h = 0, high
//                                                   half as with h = 1
//   scales   f16 scales[dim/32][16 cells]           of all types
//
// A code is value/scale + 128; for q4_0 it is value/scale + 8.
//
// A 32-bit lane of codes is the operand of one step of a dot product. For keys it holds four values
// of a cell, since scores are sums over values; for values it holds four cells, since weighted sums
// are over cells. Tiles are ordered by cell and heads are outermost, as for the other types
// (kv_storage.h).
//
// Keys are stored transformed: a head's key is multiplied by an orthonormal Hadamard matrix before
// it is quantised (hadamard-inl.h). This spreads an outlier over all values, so that it does not
// determine the scale of its block. Attention transforms the query in the same way, which leaves
// their dot product unchanged.
//
// Latents: keys of q8_0 that contain their value (KvShape::v_in_k). A key's first v_dim values and the others
// are transformed apart, and the first v_dim share one scale, which each of their blocks has. So neither
// a score nor a weighted sum needs the scale of a block of the value. Weighted sums are those of
// transformed values; attention transforms its results back.
//
// Thread safety: pure functions. Units: bytes, unless a name says otherwise.
// REQUIRES, for all functions with a type and dims: IsKvBlockType(type), multiples of kKvBlock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/kv.h"

namespace kvcache::cpu {

// Values that share a scale, for all types here.
inline constexpr std::int64_t kKvBlock = 32;
// Dims of a head in one line of 16 cells × 4 bytes of q8_0. A line of q4_0 holds two such groups.
inline constexpr std::int64_t kKeyGroup = 4;

constexpr bool IsKvBlockType(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0;
}

// The offset of a head's tiles within LayerKv::k or v, for any type.
constexpr std::int64_t BlockHeadKeys(const LayerKv& layer, std::int64_t kv_head) {
  return BytesOf(layer.k_type, kv_head * layer.cells * layer.shape.k_dim);
}
constexpr std::int64_t BlockHeadValues(const LayerKv& layer, std::int64_t kv_head) {
  return BytesOf(layer.v_type, kv_head * layer.cells * layer.shape.v_dim);
}

// The size of a tile, and the offset of the tile of cell `cell` within its head; for any type.
constexpr std::int64_t BlockTileBytes(DType type, std::int64_t dim) {
  return BytesOf(type, kCellTile * dim);
}
constexpr std::int64_t BlockTile(DType type, std::int64_t dim, std::int64_t cell) {
  return cell / kCellTile * BlockTileBytes(type, dim);
}

// Below, offsets from the beginning of a tile. `lane` is the cell's index in the tile.

// Bytes of the codes of `dim` values of one cell; and of all codes of a tile, which is the offset
// of its scales.
constexpr std::int64_t CodeBytes(DType type, std::int64_t dim) {
  return type == DType::kQ8_0 ? dim : dim / 2;
}
constexpr std::int64_t TileScales(DType type, std::int64_t dim) {
  return kCellTile * CodeBytes(type, dim);
}

// The offset of a key's four bytes in line `line`; there are CodeBytes(type, k_dim) / 4 lines.
// q8_0: line g holds the values 4g to 4g + 3. q4_0: line 4b + g holds the four values from 32b + 4g
// on and the four from 32b + 16 + 4g on.
constexpr std::int64_t KeyCodes(std::int64_t line, std::int64_t lane) {
  return (line * kCellTile + lane) * 4;
}

// The offset of byte i of a value's block, i < CodeBytes(type, kKvBlock). A line of 64 bytes holds
// 16 bytes of each of four cells.
constexpr std::int64_t ValueCode(DType type, std::int64_t block, std::int64_t i,
                                 std::int64_t lane) {
  const std::int64_t line = (block * CodeBytes(type, kKvBlock) + i) / 16 * (kCellTile / 4);
  return (line + lane / 4) * 64 + i % 16 * 4 + lane % 4;
}

// The offset of the scale of a key's or value's block.
constexpr std::int64_t BlockScale(DType type, std::int64_t dim, std::int64_t block,
                                  std::int64_t lane) {
  return TileScales(type, dim) + (block * kCellTile + lane) * 2;
}

// The size of the Hadamard matrix for a key: the largest power of two that divides its dims, at
// least kKvBlock. The matrix is applied k_dim / size times.
constexpr std::int64_t HadamardSize(std::int64_t k_dim) {
  return k_dim & -k_dim;
}

// Whether a layer stores latents.
constexpr bool HoldsLatents(const LayerKv& layer) {
  return layer.shape.v_in_k && layer.k_type == DType::kQ8_0;
}

// The size of the Hadamard matrix for a latent's value. The bound is a block of threads' part of a GPU's merge.
inline constexpr std::int64_t kMaxLatentHadamard = 512;
constexpr std::int64_t LatentHadamardSize(std::int64_t v_dim) {
  const std::int64_t size = HadamardSize(v_dim);
  return size < kMaxLatentHadamard ? size : kMaxLatentHadamard;
}

// A latent's blocks that share a scale; 0 for other keys.
constexpr std::int64_t LatentBlocks(const LayerKv& layer) {
  return HoldsLatents(layer) ? layer.shape.v_dim / kKvBlock : 0;
}

}  // namespace kvcache::cpu
