// Norms of columns, on a device. CudaBackend's methods of the same names call these functions;
// kvcache/backend.h defines them.
//
// Exactness: the sums in 64 virtual lanes of docs/design/exactness.md.
// Thread safety: one call at a time per device. Errors: those of elementwise_check.h and of the device.
#pragma once

#include "backend/cuda/device/device.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

Status RmsNorm(Device& device, const TensorView& x, const TensorView& weight, float epsilon,
               const TensorView& y);

Status Center(Device& device, const TensorView& x, const TensorView& y);

}  // namespace kvcache::cuda
