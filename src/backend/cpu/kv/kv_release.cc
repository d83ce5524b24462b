#include "backend/cpu/kv/kv_release.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvcache::cpu {
namespace {

std::int64_t PageBytes() {
  static const std::int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

// One of a layer's two arrays: `pieces` arrays with all cells, one after another.
struct CellArray {
  std::byte* data;
  std::int64_t pieces;
  std::int64_t cell_values;
  DType type;
};

CellArray Keys(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  const bool tiled = layer.layout == KvLayout::kTiled;
  return {layer.k, tiled ? shape.kv_heads : 1, (tiled ? 1 : shape.kv_heads) * shape.k_dim,
          layer.k_type};
}

CellArray Values(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  const bool tiled = layer.layout == KvLayout::kTiled;
  return {layer.v, tiled ? shape.kv_heads : 1, (tiled ? 1 : shape.kv_heads) * shape.v_dim,
          layer.v_type};
}

bool FillsPages(const CellArray& array, std::int64_t cells) {
  return BytesOf(array.type, array.cell_values * cells) % PageBytes() == 0;
}

Status Release(const CellArray& array, std::int64_t cells, const CellRun& run) {
  const std::int64_t piece = BytesOf(array.type, array.cell_values * cells);
  const std::int64_t begin = BytesOf(array.type, array.cell_values * run.cell);
  const std::int64_t size = BytesOf(array.type, array.cell_values * run.length);
  for (std::int64_t i = 0; i < array.pieces; ++i) {
    if (madvise(array.data + i * piece + begin, static_cast<std::size_t>(size), MADV_DONTNEED) !=
        0) {
      return {StatusCode::kInternal, std::string("giving memory back: ") + std::strerror(errno)};
    }
  }
  return Status::Ok();
}

}  // namespace

std::int64_t ReleasableCells(const LayerKv& layer) {
  if (layer.v_transposed) return 0;
  for (std::int64_t cells = kCellTile; cells <= layer.cells && layer.cells % cells == 0;
       cells *= 2) {
    if (!FillsPages(Keys(layer), cells)) continue;
    if (layer.shape.v_in_k || FillsPages(Values(layer), cells)) return cells;
  }
  return 0;
}

Status ReleaseCells(const LayerKv& layer, const CellRun& run) {
  if (Status keys = Release(Keys(layer), layer.cells, run); !keys.ok()) return keys;
  return layer.shape.v_in_k ? Status::Ok() : Release(Values(layer), layer.cells, run);
}

}  // namespace kvcache::cpu
