// Copying cells within a layer, for compaction and copy-on-write.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kv_kernels.h"
#include "backend/cpu/kv_storage.h"

namespace kvcache::cpu {
namespace {

// One head's keys in tiles: as many lanes at a time as lie side by side at both ends.
void CopyTiledKeys(const LayerKv& layer, int kv_head, const CellMove& move) {
  const std::int64_t bytes = InfoOf(layer.k_type).block_bytes;
  const std::int64_t k_dim = layer.shape.k_dim;
  std::byte* const head = layer.k + HeadKeys(layer, kv_head) * bytes;
  for (std::int64_t i = 0; i < move.length;) {
    const std::int64_t from = move.from + i;
    const std::int64_t to = move.to + i;
    const std::int64_t lanes =
        std::min({std::int64_t{kCellTile} - from % kCellTile,
                  std::int64_t{kCellTile} - to % kCellTile, std::int64_t{move.length} - i});
    const std::byte* source = head + (KeyTile(layer, from) + from % kCellTile) * bytes;
    std::byte* target = head + (KeyTile(layer, to) + to % kCellTile) * bytes;
    const std::int64_t rows = lanes == kCellTile ? 1 : k_dim;  // whole tiles lie in one piece
    const std::int64_t row_bytes = lanes == kCellTile ? k_dim * kCellTile * bytes : lanes * bytes;
    for (std::int64_t d = 0; d < rows; ++d) {
      std::memcpy(target, source, static_cast<std::size_t>(row_bytes));
      source += kCellTile * bytes;
      target += kCellTile * bytes;
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
  CopyTiledKeys(layer, kv_head, move);
  if (layer.shape.v_in_k) return;
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
