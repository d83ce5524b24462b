// The operations on activations between a model's linear layers, on a device. CudaBackend's methods of
// the same names call these functions; kvcache/backend.h defines them.
//
// Exactness: the chains of docs/design/exactness.md, so the bits of backend/cpu/ops/elementwise.h.
// Thread safety: one call at a time per device. Errors: those of elementwise_check.h and of the device.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

Status Gate(Device& device, const TensorView& gate, const TensorView& up, Activation activation);

Status GateClamped(Device& device, const TensorView& gate, const TensorView& up, float alpha,
                   float limit);

Status Activate(Device& device, const TensorView& x, Activation activation);

Status Xielu(Device& device, const TensorView& x, const XieluParams& params);

Status Scale(Device& device, const TensorView& x, float factor);

Status SoftCap(Device& device, const TensorView& x, float cap);

Status Add(Device& device, const TensorView& x, const TensorView& y);

Status Multiply(Device& device, const TensorView& x, const TensorView& y);

Status AddBias(Device& device, const TensorView& x, const TensorView& bias);

Status ScaleColumns(Device& device, CallMemory& memory, const TensorView& x,
                    std::span<const float> factors);

// Factors in the device's memory: column i has values[i], or values[which[i]].
struct DeviceFactors {
  const float* values = nullptr;
  const std::int32_t* which = nullptr;
};
Status ScaleColumnsBy(Device& device, const TensorView& x, const DeviceFactors& factors);

}  // namespace kvcache::cuda
