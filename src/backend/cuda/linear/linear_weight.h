// A weight matrix, or a stack of matrices, in the device's memory.
//
// Thread safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kvcache/backend.h"

namespace kvcache::cuda::linear {

// Panels of block-quantised weights, or rows of float weights at a stride of RowStride values.
class CudaWeight final : public LinearWeight {
 public:
  CudaWeight(const TensorView& w, std::int64_t matrix_bytes, std::unique_ptr<Buffer> memory)
      : inputs_(w.dims[0]),
        outputs_(w.dims[1]),
        matrices_(w.dims[2]),
        dtype_(w.dtype),
        matrix_bytes_(matrix_bytes),
        memory_(std::move(memory)) {}

  std::int64_t inputs() const override { return inputs_; }
  std::int64_t outputs() const override { return outputs_; }
  std::int64_t matrices() const override { return matrices_; }
  DType dtype() const override { return dtype_; }
  std::size_t owned_bytes() const override { return memory_->size_bytes(); }

  // The device's address of a matrix.
  const std::byte* matrix(std::int64_t index) const {
    return memory_->data() + index * matrix_bytes_;
  }

 private:
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::int64_t matrices_;
  DType dtype_;
  std::int64_t matrix_bytes_;
  std::unique_ptr<Buffer> memory_;
};

}  // namespace kvcache::cuda::linear
