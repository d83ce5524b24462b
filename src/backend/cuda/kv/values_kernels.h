// The arguments of values_kernels.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/types.h"

namespace kvcache::cuda {

// One side of a copy: dense rows, with strides in bytes along the other dimensions.
struct ValuesSide {
  std::byte* data;
  std::int64_t strides[3];
  std::int32_t value_bytes;
  DType type;
};

struct CopyValuesArgs {
  static constexpr int kThreads = 256;
  static constexpr int kValues = 4;  // of a thread
  ValuesSide from;
  ValuesSide to;
  std::int64_t dims[3];  // of all but the last
  std::int64_t values;   // in all
};

}  // namespace kvcache::cuda
