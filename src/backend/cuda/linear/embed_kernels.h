// The kernels of Embed and their arguments, for the host and for the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kv/cell_array.h"

namespace kvcache::cuda::linear {

struct EmbedArgs {
  const std::byte* table;  // rows as in a model file
  ArgumentList<std::int32_t, 128> tokens;
  const std::uint16_t* codebook;  // of types that have one
  float* y;
  std::int64_t table_stride;  // bytes from row to row
  std::int64_t y_stride;
  std::int32_t width;
  std::int32_t parts;  // blocks of threads for a row
};

// A thread takes a value.
inline constexpr int kEmbedThreads = 256;

}  // namespace kvcache::cuda::linear
