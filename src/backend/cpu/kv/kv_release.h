// Gives the pages of cells back to the system.
//
// Thread safety: none.
#pragma once

#include "kvcache/kv.h"
#include "kvcache/status.h"

namespace kvcache::cpu {

// As CellMemory's functions of these names.
std::int64_t ReleasableCells(const LayerKv& layer);
Status ReleaseCells(const LayerKv& layer, const CellRun& run);

}  // namespace kvcache::cpu
