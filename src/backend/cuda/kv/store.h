// Writes a batch's keys and values to cells: KvBackend::StoreKv.
//
// Thread safety: none. Errors: as kvcache/kv_backend.h says.
#pragma once

#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cuda {

Status StoreKv(Device& device, CallMemory& memory, const LayerKv& layer, const TensorView& k,
               const TensorView& v, std::span<const CellRun> cells);

}  // namespace kvcache::cuda
