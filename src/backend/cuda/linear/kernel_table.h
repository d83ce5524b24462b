// Which kernels multiply weights of a type, and their shapes, for the host.
//
// Thread safety: constants.
#pragma once

#include <cstdint>

#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/linear_kernels.h"
#include "kvcache/types.h"

namespace kvcache::cuda::linear {

// A kernel of products: a block of it takes `rows` × `columns` outputs.
struct ProductKernel {
  const Kernel* kernel;
  int rows;
  int columns;
  std::size_t shared_bytes;
};

// The kernel for products of `columns` columns with weights of a type.
ProductKernel ProductKernelOf(DType type, std::int64_t columns);

}  // namespace kvcache::cuda::linear
