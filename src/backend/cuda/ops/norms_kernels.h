// The kernels of norms.h, and their arguments.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace kvcache::cuda {

inline constexpr int kNormThreads = 256;
// Narrow rows: one warp each. Others: one block each, through shared memory, kWideValues at a time.
inline constexpr int kNarrowRows = kNormThreads / 32;
inline constexpr int kNarrowWidth = 512;
inline constexpr int kWideValues = 8'192;

// Rows x and y, `stride` floats apart. Kernels norm_narrow and center_narrow (kNarrowRows rows a
// block), norm_wide and center_wide (one row a block).
struct NormArgs {
  const float* x;
  const float* weight;  // [width]; not read by center
  float* y;             // may be x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int32_t width;
  std::int64_t rows;
  float epsilon;
  bool vectors;  // all hold vectors of four, and the width is a multiple of four
};

// The shared memory of the wide kernels.
struct WideNormMemory {
  alignas(16) float values[kWideValues];
  float lanes[64];
  float result;
};

}  // namespace kvcache::cuda
