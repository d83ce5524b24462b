#include "backend/cuda/kv/cell_layout.h"

#include "backend/cpu/common/kv_blocks.h"

namespace kvcache::cuda {
namespace {

// An array whose cells and units each have one stride, `cell` and `unit`, within a tile.
CellArray EvenArray(std::byte* data, std::int64_t head, std::int64_t tile, std::int64_t cell,
                    std::int64_t unit) {
  return {.data = data,
          .head = head,
          .tile = tile,
          .quad = 4 * cell,
          .cell = cell,
          .far_unit = 16 * unit,
          .unit = unit};
}

// Codes and scales of a block type; `codes` has the strides of the codes within a tile.
CellParts BlockParts(DType type, const LayerKv& layer, std::int64_t dim, CellArray codes) {
  codes.tile = cpu::BlockTileBytes(type, dim);
  codes.head = codes.tile * (layer.cells / kCellTile);
  CellParts parts;
  parts.units = codes;
  parts.scales =
      EvenArray(codes.data + cpu::TileScales(type, dim), codes.head, codes.tile, 2, 2 * kCellTile);
  parts.scale_count = static_cast<std::int32_t>(dim / cpu::kKvBlock);
  parts.tile_bytes = codes.tile;
  return parts;
}

CellParts FloatParts(DType type, std::int64_t dim, const CellArray& values) {
  CellParts parts;
  parts.units = values;
  parts.unit_count = static_cast<std::int32_t>(dim);
  parts.unit_bytes = InfoOf(type).block_bytes;
  return parts;
}

// Plain, not transposed: a cell's heads follow each other.
CellArray PlainArray(std::byte* data, const LayerKv& layer, std::int64_t dim, std::int64_t bytes) {
  const std::int64_t cell = layer.shape.kv_heads * dim * bytes;
  return EvenArray(data, dim * bytes, kCellTile * cell, cell, bytes);
}

}  // namespace

CellParts KeyParts(const LayerKv& layer) {
  const std::int64_t dim = layer.shape.k_dim;
  if (cpu::IsKvBlockType(layer.k_type)) {
    constexpr std::int64_t kLine = 4 * kCellTile;
    CellParts parts = BlockParts(layer.k_type, layer, dim, EvenArray(layer.k, 0, 0, 4, kLine));
    parts.unit_count = static_cast<std::int32_t>(cpu::CodeBytes(layer.k_type, dim) / 4);
    parts.unit_bytes = 4;
    return parts;
  }
  const std::int64_t bytes = InfoOf(layer.k_type).block_bytes;
  if (layer.layout == KvLayout::kPlain) {
    return FloatParts(layer.k_type, dim, PlainArray(layer.k, layer, dim, bytes));
  }
  const std::int64_t tile = kCellTile * dim * bytes;
  CellParts parts =
      FloatParts(layer.k_type, dim,
                 EvenArray(layer.k, layer.cells * dim * bytes, tile, bytes, kCellTile * bytes));
  parts.tile_bytes = tile;
  return parts;
}

CellParts ValueParts(const LayerKv& layer) {
  const std::int64_t dim = layer.shape.v_dim;
  if (cpu::IsKvBlockType(layer.v_type)) {
    // A line of 64 bytes holds 16 bytes of each of four cells (kv_blocks.h).
    const CellArray codes = {.data = layer.v,
                             .head = 0,
                             .tile = 0,
                             .quad = 64,
                             .cell = 1,
                             .far_unit = 4 * 64,
                             .unit = 4};
    CellParts parts = BlockParts(layer.v_type, layer, dim, codes);
    parts.unit_count = static_cast<std::int32_t>(cpu::CodeBytes(layer.v_type, dim));
    parts.unit_bytes = 1;
    return parts;
  }
  const std::int64_t bytes = InfoOf(layer.v_type).block_bytes;
  if (layer.v_transposed) {
    return FloatParts(layer.v_type, dim,
                      EvenArray(layer.v, layer.cells * dim * bytes, kCellTile * bytes, bytes,
                                layer.cells * bytes));
  }
  if (layer.layout == KvLayout::kPlain) {
    return FloatParts(layer.v_type, dim, PlainArray(layer.v, layer, dim, bytes));
  }
  const std::int64_t tile = kCellTile * dim * bytes;
  CellParts parts = FloatParts(
      layer.v_type, dim, EvenArray(layer.v, layer.cells * dim * bytes, tile, dim * bytes, bytes));
  parts.tile_bytes = tile;
  return parts;
}

}  // namespace kvcache::cuda
