// The rules for the arguments of recurrence.h's functions, for each backend that has them. Errors name
// the shapes.
//
// Thread safety: all functions are pure; they read no tensor's data.
#pragma once

#include <cstdint>

#include "kvcache/recurrence.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache::cpu {

inline constexpr int kConvSteps = 32;  // the largest number of a convolution's steps

Status CheckShortConv(const TensorView& x, const ConvTaps& taps, const StateSegments& inputs,
                      const TensorView& y);
Status CheckDecayRates(const TensorView& raw, const TensorView& bias, const TensorView& rates,
                       const TensorView& steps, const TensorView& decays);
Status CheckStateScan(const ScanInputs& inputs, const ScanOptions& options,
                      const StateSegments& states, const TensorView& out);

struct ScanSizes {
  std::int64_t k_dim, v_dim, groups, heads, batch;

  explicit ScanSizes(const ScanInputs& inputs)
      : k_dim(inputs.keys.dims[0]),
        v_dim(inputs.values.dims[0]),
        groups(inputs.keys.dims[1]),
        heads(inputs.values.dims[1]),
        batch(inputs.values.dims[2]) {}
};

}  // namespace kvcache::cpu
