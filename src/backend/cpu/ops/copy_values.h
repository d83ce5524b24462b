// Copying tensors between float types: states, and whatever leaves or enters a cache whole.
#pragma once

#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// to = from. Errors: kUnsupported for types other than f32, f16 and bf16; kInvalidArgument for
// dims that differ or rows that are not dense. REQUIRES: no overlap.
Status CopyValues(ThreadPool& pool, const TensorView& from, const TensorView& to);

}  // namespace kvcache::cpu
