// Copies cells within and between layers: KvBackend::CopyCells, TransferCells.
//
// Thread safety: none. Errors: as kvcache/kv_backend.h says.
#pragma once

#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cuda {

// Copies cells between layers in the device's memory, which may be one layer. REQUIRES: valid arguments
// (CheckTransfer).
Status CopyOnDevice(Device& device, CallMemory& memory, const LayerKv& from, const LayerKv& to,
                    std::span<const CellMove> moves);

Status CopyCells(Device& device, CallMemory& memory, const LayerKv& layer,
                 std::span<const CellMove> moves);

Status TransferCells(Device& device, CallMemory& memory, const LayerKv& from, const LayerKv& to,
                     std::span<const CellMove> moves);

}  // namespace kvcache::cuda
