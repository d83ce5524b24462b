// Attention over a cache's cells on a device, for CudaBackend::Attention. kvcache/kv_backend.h defines what it
// computes, docs/design/exactness.md the order of the operations. The bits are those of the CPU backend.
//
// Thread safety: one call at a time per workspace.
#pragma once

#include "backend/cuda/attention/attention_plans.h"
#include "backend/cuda/device/call_memory.h"
#include "backend/cuda/device/device.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cuda {

// K, V, q and out are the device's; the visibility's and the options' spans are in host memory.
// Errors: those of cpu::CheckAttention and cpu::CheckVisibility, kUnsupported for heads that do not fit into a block's shared memory, and
// the device's.
Status Attention(Device& device, CallMemory& memory, AttentionPlans& plans, const LayerKv& layer,
                 const TensorView& q, const Visibility& visibility, const AttentionOptions& options,
                 const TensorView& out);

}  // namespace kvcache::cuda
