// Copies tensors of float types: KvBackend::CopyValues, CopyToHost, CopyFromHost.
//
// Thread safety: none. Errors: as kvcache/kv_backend.h says.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache::cuda {

Status CopyValues(Device& device, const TensorView& from, const TensorView& to);
Status CopyToHost(Device& device, CallMemory& memory, const TensorView& from,
                  std::span<std::byte> to);
Status CopyFromHost(Device& device, CallMemory& memory, std::span<const std::byte> from,
                    const TensorView& to);

}  // namespace kvcache::cuda
