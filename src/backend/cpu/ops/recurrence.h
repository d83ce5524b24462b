// The operations of recurrent layers. CpuBackend's methods of the same names call these functions;
// kvcache/backend.h and kvcache/recurrence.h define them.
//
// Exactness: every channel of a convolution and every column of a state is one chain over taps,
// keys and tokens in ascending order; threads share out channels, heads and columns.
// Thread safety: one call at a time per pool. Nothing allocates.
#pragma once

#include "kvcache/recurrence.h"
#include "kvcache/status.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

Status ShortConv(ThreadPool& pool, const TensorView& x, const ConvTaps& taps,
                 const StateSegments& inputs, const TensorView& y);

Status StateScan(ThreadPool& pool, const ScanInputs& inputs, const ScanOptions& options,
                 const StateSegments& states, const TensorView& out);

Status DecayRates(ThreadPool& pool, const TensorView& raw, const TensorView& bias,
                  const TensorView& rates, const TensorView& steps, const TensorView& decays);

}  // namespace kvcache::cpu
