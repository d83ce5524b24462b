// Copying cells within a layer, for compaction and copy-on-write.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kv_blocks.h"
#include "backend/cpu/kv_kernels.h"
#include "backend/cpu/kv_storage.h"

namespace kvcache::cpu {
namespace {

// Part of a tile: `rows` rows, each with `bytes` neighbouring bytes of every cell.
struct TilePart {
  std::int64_t rows;
  std::int64_t bytes;
};

// One head's tiles in LayerKv::k or v: parts one after another.
struct Tiles {
  std::byte* head;
  TilePart parts[2];

  std::int64_t TileBytes() const {
    return kCellTile * (parts[0].rows * parts[0].bytes + parts[1].rows * parts[1].bytes);
  }
};

Tiles KeyTiles(const LayerKv& layer, int kv_head) {
  const std::int64_t k_dim = layer.shape.k_dim;
  std::byte* const head = layer.k + BlockHeadKeys(layer, kv_head);
  if (!IsKvBlockType(layer.k_type)) return {head, {{k_dim, InfoOf(layer.k_type).block_bytes}, {}}};
  return {head, {{CodeBytes(layer.k_type, k_dim) / 4, 4}, {k_dim / kKvBlock, 2}}};
}

// REQUIRES: V of a block type.
Tiles ValueTiles(const LayerKv& layer, int kv_head) {
  const std::int64_t v_dim = layer.shape.v_dim;
  return {layer.v + BlockHeadValues(layer, kv_head),
          {{1, CodeBytes(layer.v_type, v_dim)}, {1, v_dim / kKvBlock * 2}}};
}

// Cells from lane `from` of a tile to lane `to` of another, as many as lie side by side in both.
void CopyLanes(const Tiles& tiles, const std::byte* source, std::int64_t from, std::byte* target,
               std::int64_t to, std::int64_t lanes) {
  for (const TilePart& part : tiles.parts) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      std::memcpy(target + to * part.bytes, source + from * part.bytes,
                  static_cast<std::size_t>(lanes * part.bytes));
      source += kCellTile * part.bytes;
      target += kCellTile * part.bytes;
    }
  }
}

void CopyTiles(const Tiles& tiles, const CellMove& move) {
  const std::int64_t tile_bytes = tiles.TileBytes();
  for (std::int64_t i = 0; i < move.length;) {
    const std::int64_t from = move.from + i;
    const std::int64_t to = move.to + i;
    const std::int64_t lanes =
        std::min({std::int64_t{kCellTile} - from % kCellTile,
                  std::int64_t{kCellTile} - to % kCellTile, std::int64_t{move.length} - i});
    const std::byte* const source = tiles.head + from / kCellTile * tile_bytes;
    std::byte* const target = tiles.head + to / kCellTile * tile_bytes;
    if (lanes == kCellTile) {  // whole tiles lie in one piece
      std::memcpy(target, source, static_cast<std::size_t>(tile_bytes));
    } else {
      CopyLanes(tiles, source, from % kCellTile, target, to % kCellTile, lanes);
    }
    i += lanes;
  }
}

// Rows of `row` values, cell after cell.
void CopyRows(std::byte* base, DType type, std::int64_t row, const CellMove& move) {
  std::memcpy(base + BytesOf(type, move.to * row), base + BytesOf(type, move.from * row),
              static_cast<std::size_t>(BytesOf(type, move.length * row)));
}

void CopyTiled(const LayerKv& layer, int kv_head, const CellMove& move) {
  CopyTiles(KeyTiles(layer, kv_head), move);
  if (layer.shape.v_in_k) return;
  if (IsKvBlockType(layer.v_type)) return CopyTiles(ValueTiles(layer, kv_head), move);
  CopyRows(layer.v + BytesOf(layer.v_type, HeadValues(layer, kv_head)), layer.v_type,
           layer.shape.v_dim, move);
}

void CopyPlain(const LayerKv& layer, const CellMove& move) {
  const std::int64_t heads = layer.shape.kv_heads;
  CopyRows(layer.k, layer.k_type, heads * layer.shape.k_dim, move);
  if (layer.shape.v_in_k) return;
  if (!layer.v_transposed) return CopyRows(layer.v, layer.v_type, heads * layer.shape.v_dim, move);
  for (std::int64_t row = 0; row < heads * layer.shape.v_dim; ++row) {
    CopyRows(layer.v + BytesOf(layer.v_type, row * layer.cells), layer.v_type, 1, move);
  }
}

}  // namespace

Status CopyCells(ThreadPool& pool, const LayerKv& layer, std::span<const CellMove> moves) {
  KVCACHE_RETURN_IF_ERROR(CheckLayer(layer));
  for (const CellMove& move : moves) {
    KVCACHE_RETURN_IF_ERROR(CheckCells(layer, "copy from", move.from, move.length));
    KVCACHE_RETURN_IF_ERROR(CheckCells(layer, "copy to", move.to, move.length));
  }
  if (layer.layout == KvLayout::kPlain) {
    for (const CellMove& move : moves) CopyPlain(layer, move);
    return Status::Ok();
  }
  pool.ParallelFor(layer.shape.kv_heads, [&](std::int64_t kv_head, int) {
    for (const CellMove& move : moves) CopyTiled(layer, static_cast<int>(kv_head), move);
  });
  return Status::Ok();
}

}  // namespace kvcache::cpu
