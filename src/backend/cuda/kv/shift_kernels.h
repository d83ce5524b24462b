// The arguments of shift_kernels.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kv/cell_array.h"
#include "kvcache/kv.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

struct ShiftArgs {
  static constexpr int kThreads = 128;
  CellArray units;
  CellArray scales;      // of a block type
  const float* cosines;  // [pairs]
  const float* sines;    // [pairs]
  std::int32_t dim;      // k_dim
  std::int32_t first;    // the first rotated value of a key
  std::int32_t pairs;
  std::int32_t near;      // from a pair to the next: 2 (interleaved) or 1 (halves)
  std::int32_t second;    // from a pair's first value to its second: 1 or `pairs`
  std::int32_t hadamard;  // size of the matrix, of a block type
  std::int32_t latent;    // values that stay as they are, a multiple of 32
  float hadamard_factor;
  DType type;
  ArgumentList<CellRun, 96> runs;  // within a tile each
};

}  // namespace kvcache::cuda
