// The kernels of rope.h, and their arguments.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "backend/cuda/kv/cell_array.h"
#include "kvcache/types.h"

namespace kvcache::cuda {

inline constexpr int kRopeThreads = 256;

// Kernel rope_angles: a thread per token and pair.
struct AngleArgs {
  ArgumentList<Position, 128> positions;  // [tokens]
  ArgumentList<float, 256> inv_freq;      // [pairs]
  float* cosines;                         // [pairs, tokens]
  float* sines;                           // [pairs, tokens]
  std::int64_t tokens;
  std::int32_t pairs;
  float magnitude;
};

// Kernel rotate_heads: a thread per pair of a head. Blocks [i · blocks, (i + 1) · blocks) rotate token i.
struct RotateArgs {
  float* x;  // the first rotated value of the first head
  const float* cosines;
  const float* sines;
  std::int64_t token_stride;
  std::int64_t head_stride;
  std::int32_t heads;
  std::int32_t pairs;
  std::int32_t blocks;
  bool interleaved;
};

}  // namespace kvcache::cuda
