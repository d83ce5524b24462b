// Linear layers on the device: weights in the CPU's panels (cpu/common/block_layout.h) or rows, and their
// products, with the CPU's bits.
//
// Thread safety: one call at a time per device and memory; weights are immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

// Copies w, which is in host memory, to the device; the device's pool packs blocks on the way. Errors: those of
// the CPU's MakeLinear; kOutOfMemory of the device or of the host, which needs some MiB for the packing.
Result<std::unique_ptr<LinearWeight>> MakeLinear(Device& device, const TensorView& w);

// Backend::LinearGroups. Inputs of block-quantised weights are 16-byte aligned, else kInvalidArgument.
// REQUIRES: weights of this device.
Status LinearGroups(Device& device, CallMemory& memory, std::span<const LinearGroup> groups);

// Backend::Embed. The table is in the device's memory, its rows as in a model file.
Status Embed(Device& device, CallMemory& memory, const TensorView& table,
             std::span<const std::int32_t> tokens, const TensorView& y);

// The same for rows whose numbers are in the device's memory, one per column of y. REQUIRES: what Embed checks.
Status EmbedRows(Device& device, CallMemory& memory, const TensorView& table,
                 const std::int32_t* rows, const TensorView& y);

}  // namespace kvcache::cuda
