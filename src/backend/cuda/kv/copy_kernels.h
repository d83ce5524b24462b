// The arguments of copy_kernels.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kv/cell_array.h"
#include "kvcache/kv.h"

namespace kvcache::cuda {

// Units of 1, 2 or 4 bytes from one array of cells to another.
struct UnitsCopy {
  CellArray from;
  CellArray to;
  std::int32_t units;  // of a cell's head
  std::int32_t unit_bytes;
};

struct CopyUnitsArgs {
  static constexpr int kThreads = 256;
  static constexpr int kSides = 4;  // K and V, codes and scales
  UnitsCopy sides[kSides];
  ArgumentList<CellMove, 64> moves;
};

// Whole tiles, which lie in one piece for each head.
struct TilesCopy {
  const std::byte* from;
  std::byte* to;
  std::int64_t from_head;
  std::int64_t to_head;
  std::int64_t tile_bytes;  // a multiple of 16
};

struct CopyTilesArgs {
  static constexpr int kThreads = 256;
  TilesCopy sides[2];
  ArgumentList<CellMove, 128> moves;  // numbers of tiles
};

}  // namespace kvcache::cuda
