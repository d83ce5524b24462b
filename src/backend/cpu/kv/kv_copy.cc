// Copies cells within a layer, for compaction and copy-on-write, and between layers, for snapshots.
#include <algorithm>
#include <cstring>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/common/kv_storage.h"
#include "backend/cpu/kv/cell_nodes.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cpu/kv/kv_kernels.h"

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

// Where a copy of one head's cells reads and writes.
struct Sides {
  const std::byte* from;
  std::byte* to;
};

// Copies neighbouring tiles in one piece and calls copy_lanes(LaneMove) for parts of tiles.
template <class CopyLanes>
void CopyTiles(const Sides& head, std::int64_t tile_bytes, const CellMove& move,
               const CopyLanes& copy_lanes) {
  for (std::int64_t i = 0; i < move.length;) {
    const std::int64_t from = move.from + i;
    const std::int64_t to = move.to + i;
    const std::byte* const source = head.from + from / kCellTile * tile_bytes;
    std::byte* const target = head.to + to / kCellTile * tile_bytes;
    const bool aligned = from % kCellTile == 0 && to % kCellTile == 0;
    if (const std::int64_t tiles = (move.length - i) / kCellTile; aligned && tiles > 0) {
      std::memcpy(target, source, static_cast<std::size_t>(tiles * tile_bytes));
      i += tiles * kCellTile;
      continue;
    }
    const std::int64_t lanes =
        std::min({std::int64_t{kCellTile} - from % kCellTile,
                  std::int64_t{kCellTile} - to % kCellTile, std::int64_t{move.length} - i});
    copy_lanes(LaneMove{source, target, from % kCellTile, to % kCellTile, lanes});
    i += lanes;
  }
}

// Copies cells that are contiguous rows of `row` values.
void CopyRows(const Sides& base, DType type, std::int64_t row, const CellMove& move) {
  std::memcpy(base.to + BytesOf(type, move.to * row), base.from + BytesOf(type, move.from * row),
              static_cast<std::size_t>(BytesOf(type, move.length * row)));
}

void CopyTiledKeys(const LayerKv& from, const LayerKv& to, int kv_head, const CellMove& move) {
  const std::int64_t k_dim = from.shape.k_dim;
  const Sides head{from.k + BlockHeadKeys(from, kv_head), to.k + BlockHeadKeys(to, kv_head)};
  CopyTiles(head, BlockTileBytes(from.k_type, k_dim), move,
            [&](const LaneMove& lanes) { CopyKeyLanes(lanes, from.k_type, k_dim); });
}

void CopyTiledValues(const LayerKv& from, const LayerKv& to, int kv_head, const CellMove& move) {
  const std::int64_t v_dim = from.shape.v_dim;
  const Sides head{from.v + BlockHeadValues(from, kv_head), to.v + BlockHeadValues(to, kv_head)};
  if (!IsKvBlockType(from.v_type)) return CopyRows(head, from.v_type, v_dim, move);
  CopyTiles(head, BlockTileBytes(from.v_type, v_dim), move,
            [&](const LaneMove& lanes) { CopyValueLanes(lanes, from.v_type, v_dim); });
}

// Both layers are plain, with V transposed in both or in neither.
void CopyPlain(const LayerKv& from, const LayerKv& to, const CellMove& move) {
  const std::int64_t heads = from.shape.kv_heads;
  CopyRows({from.k, to.k}, from.k_type, heads * from.shape.k_dim, move);
  if (from.shape.v_in_k) return;
  const Sides values{from.v, to.v};
  if (!from.v_transposed) return CopyRows(values, from.v_type, heads * from.shape.v_dim, move);
  for (std::int64_t row = 0; row < heads * from.shape.v_dim; ++row) {
    const Sides lane{from.v + BytesOf(from.v_type, row * from.cells),
                     to.v + BytesOf(to.v_type, row * to.cells)};
    CopyRows(lane, from.v_type, 1, move);
  }
}

// Return the index of a value in K or V, for float types in any layout.
std::int64_t KeyIndex(const LayerKv& layer, std::int64_t cell, std::int64_t head, std::int64_t d) {
  const std::int64_t k_dim = layer.shape.k_dim;
  if (layer.layout == KvLayout::kPlain) return (cell * layer.shape.kv_heads + head) * k_dim + d;
  return head * layer.cells * k_dim + KeyTile(layer, cell) + d * kCellTile + cell % kCellTile;
}
std::int64_t ValueIndex(const LayerKv& layer, std::int64_t cell, std::int64_t head,
                        std::int64_t d) {
  const std::int64_t v_dim = layer.shape.v_dim;
  if (layer.v_transposed) return (head * v_dim + d) * layer.cells + cell;
  if (layer.layout == KvLayout::kPlain) return (cell * layer.shape.kv_heads + head) * v_dim + d;
  return (head * layer.cells + cell) * v_dim + d;
}

// Copies value by value, between a plain and a tiled layer.
void CopyBetweenLayouts(const LayerKv& from, const LayerKv& to, int kv_head, const CellMove& move) {
  const auto k_bytes = static_cast<std::size_t>(InfoOf(from.k_type).block_bytes);
  const auto v_bytes = static_cast<std::size_t>(InfoOf(from.v_type).block_bytes);
  for (std::int64_t i = 0; i < move.length; ++i) {
    for (std::int64_t d = 0; d < from.shape.k_dim; ++d) {
      std::memcpy(to.k + KeyIndex(to, move.to + i, kv_head, d) * k_bytes,
                  from.k + KeyIndex(from, move.from + i, kv_head, d) * k_bytes, k_bytes);
    }
    for (std::int64_t d = 0; d < from.shape.v_dim && !from.shape.v_in_k; ++d) {
      std::memcpy(to.v + ValueIndex(to, move.to + i, kv_head, d) * v_bytes,
                  from.v + ValueIndex(from, move.from + i, kv_head, d) * v_bytes, v_bytes);
    }
  }
}

void CopyMoves(ThreadPool& pool, const LayerKv& from, const LayerKv& to,
               std::span<const CellMove> moves) {
  if (from.layout == KvLayout::kPlain && to.layout == KvLayout::kPlain &&
      from.v_transposed == to.v_transposed) {
    for (const CellMove& move : moves) CopyPlain(from, to, move);
    return;
  }
  const int heads = from.shape.kv_heads;
  if (from.layout != to.layout || from.layout == KvLayout::kPlain) {
    pool.ParallelFor(heads, [&](std::int64_t head, int) {
      for (const CellMove& move : moves) CopyBetweenLayouts(from, to, static_cast<int>(head), move);
    });
    return;
  }
  // Threads take K and V by turns, and the last heads first: then two threads rarely meet in a page of
  // memory that the system has not provided yet, and the system's zeros are still in the cache of the
  // processor where the copy continues.
  const bool values = !from.shape.v_in_k;
  const auto copy = [&](bool keys, int head) {
    for (const CellMove& move : moves) {
      keys ? CopyTiledKeys(from, to, head, move) : CopyTiledValues(from, to, head, move);
    }
  };
  const int arrays = values ? 2 : 1;
  if (pool.nodes() > 1 && HasNodeForHeads(pool, from)) {
    // Heads of the cells that the copy is to, or else from, are at home on their node.
    ThreadPool::Ends ends{};
    for (int node = 0; node < pool.nodes(); ++node) {
      ends[static_cast<std::size_t>(node)] = arrays * pool.PartBegin(heads, node + 1);
    }
    const auto copy_part = [&](std::int64_t task, int) {
      copy(!values || task % 2 == 0, static_cast<int>(task / arrays));
    };
    pool.ParallelFor(ends, copy_part, TakenBy::kHomeNode);
    return;
  }
  pool.ParallelFor(arrays * heads, [&](std::int64_t task, int) {
    copy(!values || task % 2 == 0, heads - 1 - static_cast<int>(task / arrays));
  });
}

}  // namespace

Status CopyCells(ThreadPool& pool, const LayerKv& layer, std::span<const CellMove> moves) {
  return TransferCells(pool, layer, layer, moves);
}

Status TransferCells(ThreadPool& pool, const LayerKv& from, const LayerKv& to,
                     std::span<const CellMove> moves) {
  KVCACHE_RETURN_IF_ERROR(CheckTransfer(from, to, moves));
  CopyMoves(pool, from, to, moves);
  return Status::Ok();
}

}  // namespace kvcache::cpu
