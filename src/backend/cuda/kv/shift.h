// Rotates stored keys: KvBackend::ShiftKeys.
//
// Thread safety: none. Errors: as kvcache/kv_backend.h says.
#pragma once

#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cuda {

Status ShiftKeys(Device& device, CallMemory& memory, const LayerKv& layer,
                 std::span<const CellRun> cells, Position offset, const RopeParams& rope);

}  // namespace kvcache::cuda
