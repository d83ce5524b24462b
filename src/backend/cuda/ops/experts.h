// Routing for mixtures of experts, on a device. CudaBackend's methods of the same names call these
// functions; kvcache/backend.h defines them.
//
// Exactness: a warp chooses and weighs a token's experts, by the chains of docs/design/exactness.md.
// Thread safety: one call at a time per device. Errors: those of experts_check.h and of the device.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

// Waits for the device: the results are host memory.
Status Route(Device& device, CallMemory& memory, const TensorView& logits,
             const RouterOptions& options, std::span<std::int32_t> experts,
             std::span<float> weights);

Status Combine(Device& device, CallMemory& memory, const TensorView& y,
               std::span<const std::int32_t> columns, std::span<const float> weights,
               const TensorView& out);

// The same for choices that stay in the device's memory.
struct DeviceChoices {
  std::int32_t* experts = nullptr;  // [chosen, batch]
  float* weights = nullptr;         // [chosen, batch]
};
// Each weight is multiplied by its expert's of `factors`, [experts] or empty.
Status RouteOnDevice(Device& device, CallMemory& memory, const TensorView& logits,
                     const RouterOptions& options, std::span<const float> factors,
                     const DeviceChoices& to);

// The columns of y that each column of out is the sum of. Null weights are 1.
struct DeviceParts {
  const std::int32_t* columns = nullptr;  // [parts, batch]
  const float* weights = nullptr;         // [parts, batch]
  std::int32_t parts = 0;
};
Status CombineOnDevice(Device& device, const TensorView& y, const DeviceParts& parts,
                       const TensorView& out);

}  // namespace kvcache::cuda
