// The kernels of elementwise.h, and their arguments.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "kvcache/backend.h"

namespace kvcache::cuda {

inline constexpr int kElementThreads = 256;
inline constexpr int kElementValues = 4;  // neighbors that a thread computes
inline constexpr std::int64_t kElementBlock = std::int64_t{kElementThreads} * kElementValues;

// Values of dense tensors. A block computes kElementBlock of them.
struct Elements {
  float* x;
  const float* y;  // as many as x, or null
  std::int64_t values;
  bool vectors;  // both hold vectors of four
};

struct NoParams {};   // kernels add_values, multiply_values
struct ScaleParams {  // scale_values
  float factor;
};
struct ActivationParams {  // gate_values, activate_values
  Activation activation;
};
struct GateClampedParams {  // gate_clamped
  float alpha;
  float limit;
};
struct SoftCapParams {  // soft_cap
  float cap;
};
// xielu has XieluParams of kvcache/backend.h.

template <class Params>
struct ElementArgs {
  Elements elements;
  Params params;
};

// Columns of a matrix, `stride` floats apart. Blocks [i · blocks, (i + 1) · blocks) compute column i.
// Kernels add_bias (`by` has a value per row) and scale_columns (one per column; with `which`, column i
// has value which[i]).
struct ColumnArgs {
  float* x;
  const float* by;
  const std::int32_t* which;
  std::int64_t width;
  std::int64_t stride;
  std::int32_t blocks;
  bool vectors;  // x and, for add_bias, `by` hold vectors of four
};

}  // namespace kvcache::cuda
