// Copies tensors between float types: recurrent states, and other data that a cache stores whole.
#pragma once

#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

// The rules for CopyValues' arguments, for each backend that has it.
Status CheckCopyValues(const TensorView& from, const TensorView& to);

// Sets to = from, converting the type. Errors: kUnsupported for types other than f32, f16 and bf16;
// kInvalidArgument if the dims differ or rows are not dense. REQUIRES: no overlap.
Status CopyValues(ThreadPool& pool, const TensorView& from, const TensorView& to);

}  // namespace kvcache::cpu
