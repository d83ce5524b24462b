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

// A product, and the processors of the device.
struct ProductSize {
  std::int64_t outputs;
  std::int64_t columns;
  int processors;
};

// The kernel for a product with weights of a type. All kernels of a type give the same bits.
ProductKernel ProductKernelOf(DType type, const ProductSize& size);

// The blocks of threads that the kernel needs.
std::int64_t BlocksOf(const ProductKernel& kernel, const ProductSize& size);

}  // namespace kvcache::cuda::linear
