// The operations of recurrent layers, on a device. CudaBackend's methods of the same names call these
// functions; kvcache/backend.h and kvcache/recurrence.h define them. States lie in the device's memory.
//
// Exactness: every channel of a convolution and every column of a state is one thread's chain, as
// docs/design/exactness.md says.
// Thread safety: one call at a time per device. Errors: those of recurrence_check.h and of the device;
// kUnsupported for keys that do not fit into a block's shared memory.
#pragma once

#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/recurrence.h"

namespace kvcache::cuda {

Status ShortConv(Device& device, CallMemory& memory, const TensorView& x, const ConvTaps& taps,
                 const StateSegments& inputs, const TensorView& y);

Status DecayRates(Device& device, const TensorView& raw, const TensorView& bias,
                  const TensorView& rates, const TensorView& steps, const TensorView& decays);

Status StateScan(Device& device, CallMemory& memory, const ScanInputs& inputs,
                 const ScanOptions& options, const StateSegments& states, const TensorView& out);

}  // namespace kvcache::cuda
