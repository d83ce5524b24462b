// Copies cells within a layer, for compaction and copy-on-write.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kv/kv_blocks.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "backend/cpu/kv/kv_storage.h"

namespace kvcache::cpu {
namespace {

// A move of lanes [from, from + count) of the tile `source` to the lanes from `to` on of `target`.
struct LaneMove {
  const std::byte* source;
  std::byte* target;
  std::int64_t from;
  std::int64_t to;
  std::int64_t count;
};

// Copies lanes of `rows` rows from `offset` of a tile on. A row has `bytes` bytes of every cell.
void CopyRowLanes(const LaneMove& move, std::int64_t offset, std::int64_t rows,
                  std::int64_t bytes) {
  for (std::int64_t row = 0; row < rows; ++row, offset += kCellTile * bytes) {
    std::memcpy(move.target + offset + move.to * bytes, move.source + offset + move.from * bytes,
                static_cast<std::size_t>(move.count * bytes));
  }
}

void CopyScaleLanes(const LaneMove& move, DType type, std::int64_t dim) {
  CopyRowLanes(move, TileScales(type, dim), dim / kKvBlock, 2);
}

void CopyKeyLanes(const LaneMove& move, DType type, std::int64_t k_dim) {
  if (!IsKvBlockType(type)) return CopyRowLanes(move, 0, k_dim, InfoOf(type).block_bytes);
  CopyRowLanes(move, 0, CodeBytes(type, k_dim) / 4, 4);
  CopyScaleLanes(move, type, k_dim);
}

void CopyValueLanes(const LaneMove& move, DType type, std::int64_t v_dim) {
  for (std::int64_t b = 0; b < v_dim / kKvBlock; ++b) {
    for (std::int64_t i = 0; i < CodeBytes(type, kKvBlock); ++i) {
      for (std::int64_t lane = 0; lane < move.count; ++lane) {
        move.target[ValueCode(type, b, i, move.to + lane)] =
            move.source[ValueCode(type, b, i, move.from + lane)];
      }
    }
  }
  CopyScaleLanes(move, type, v_dim);
}

// Copies whole tiles in one piece and calls copy_lanes(LaneMove) for parts of tiles.
template <class CopyLanes>
void CopyTiles(std::byte* head, std::int64_t tile_bytes, const CellMove& move,
               const CopyLanes& copy_lanes) {
  for (std::int64_t i = 0; i < move.length;) {
    const std::int64_t from = move.from + i;
    const std::int64_t to = move.to + i;
    const std::int64_t lanes =
        std::min({std::int64_t{kCellTile} - from % kCellTile,
                  std::int64_t{kCellTile} - to % kCellTile, std::int64_t{move.length} - i});
    const std::byte* const source = head + from / kCellTile * tile_bytes;
    std::byte* const target = head + to / kCellTile * tile_bytes;
    if (lanes == kCellTile) {
      std::memcpy(target, source, static_cast<std::size_t>(tile_bytes));
    } else {
      copy_lanes(LaneMove{source, target, from % kCellTile, to % kCellTile, lanes});
    }
    i += lanes;
  }
}

// Copies cells that are contiguous rows of `row` values.
void CopyRows(std::byte* base, DType type, std::int64_t row, const CellMove& move) {
  std::memcpy(base + BytesOf(type, move.to * row), base + BytesOf(type, move.from * row),
              static_cast<std::size_t>(BytesOf(type, move.length * row)));
}

void CopyTiled(const LayerKv& layer, int kv_head, const CellMove& move) {
  const std::int64_t k_dim = layer.shape.k_dim;
  const std::int64_t v_dim = layer.shape.v_dim;
  CopyTiles(layer.k + BlockHeadKeys(layer, kv_head), BlockTileBytes(layer.k_type, k_dim), move,
            [&](const LaneMove& lanes) { CopyKeyLanes(lanes, layer.k_type, k_dim); });
  if (layer.shape.v_in_k) return;
  if (IsKvBlockType(layer.v_type)) {
    return CopyTiles(layer.v + BlockHeadValues(layer, kv_head), BlockTileBytes(layer.v_type, v_dim),
                     move,
                     [&](const LaneMove& lanes) { CopyValueLanes(lanes, layer.v_type, v_dim); });
  }
  CopyRows(layer.v + BytesOf(layer.v_type, HeadValues(layer, kv_head)), layer.v_type, v_dim, move);
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
