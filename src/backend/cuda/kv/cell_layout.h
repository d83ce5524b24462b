// Describes a layer's keys and values as arrays of units (cell_array.h).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "backend/cuda/kv/cell_array.h"
#include "kvcache/kv.h"

namespace kvcache::cuda {

// K or V of a layer. Block types have scales beside the codes.
struct CellParts {
  CellArray units{};
  CellArray scales{};            // of block types
  std::int32_t unit_count = 0;   // of a cell's head
  std::int32_t unit_bytes = 0;   // 1, 2 or 4
  std::int32_t scale_count = 0;  // of a cell's head; 0: none
  std::int64_t tile_bytes =
      0;  // 16 cells of a head that follow each other in memory; 0: they do not
};

// REQUIRES: the layer is valid (CheckLayer).
CellParts KeyParts(const LayerKv& layer);
// REQUIRES: V is not in K.
CellParts ValueParts(const LayerKv& layer);

}  // namespace kvcache::cuda
