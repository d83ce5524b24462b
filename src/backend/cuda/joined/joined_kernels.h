// The kernels that do the work of several launches, and their arguments.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "backend/cuda/kv/store_kernels.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "backend/cuda/ops/norms_kernels.h"
#include "backend/cuda/ops/rope_kernels.h"
#include "kvcache/backend.h"

namespace kvcache::cuda {

// Kernels joined_norm, and joined_norm_16, _32, _256, which also quantise the norm's result. A block has a row; blocks
// behind the last row quantise the zeros that fill the last tile of columns.
struct JoinedNormArgs {
  NormArgs norm;       // of at most kWideValues values a row; `vectors` is true
  float* sum;          // norm.x
  const float* added;  // first sum += added, dense rows of norm.width values; or null
  linear::QuantizeTask to;
};

// Kernels joined_gate_16, _32 and _256: gate = activation(gate) × up, then quantised. A warp has 256 values of a column,
// as in linear_quantize.
struct JoinedGateArgs {
  float* gate;  // [columns][inputs] of `to`, as `up`
  const float* up;
  linear::QuantizeTask to;
  Activation activation;
};

// Kernel joined_store: rotates queries and keys and stores keys and values. Blocks: (piece, KV head, part); the parts are
// keys, values, and the queries of the head's group.
struct JoinedStoreArgs {
  StoreArgs store;
  RotateArgs q;
  RotateArgs k;
  std::int32_t group;  // heads of q / heads of k
};

}  // namespace kvcache::cuda
