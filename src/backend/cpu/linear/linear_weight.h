// Weight matrices, or stacks of matrices, in the forms that the linear layers' kernels read.
//
// Thread safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cpu/linear/linear_block.h"
#include "backend/cpu/linear/linear_float.h"
#include "backend/cpu/linear/weight_memory.h"
#include "kvcache/backend.h"

namespace kvcache::cpu {

class CpuWeight : public LinearWeight {
 public:
  explicit CpuWeight(const TensorView& w)
      : inputs_(w.dims[0]), outputs_(w.dims[1]), matrices_(w.dims[2]), dtype_(w.dtype) {}
  std::int64_t inputs() const final { return inputs_; }
  std::int64_t outputs() const final { return outputs_; }
  std::int64_t matrices() const final { return matrices_; }
  DType dtype() const final { return dtype_; }

 private:
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::int64_t matrices_;
  DType dtype_;
};

// F32, F16 and BF16 weights: used in place. The memory has to outlive the weight.
class FloatWeight final : public CpuWeight {
 public:
  explicit FloatWeight(const TensorView& w) : CpuWeight(w), rows_(w.data) {}
  std::size_t owned_bytes() const override { return 0; }
  flt::Weights weights(std::int64_t matrix) const {
    const std::int64_t offset = matrix * outputs() * BytesOf(dtype(), inputs());
    return {.rows = rows_ + offset, .dtype = dtype(), .inputs = inputs(), .outputs = outputs()};
  }

 private:
  const std::byte* rows_;
};

// Weights of block types: a copy in panels of 16 rows (common/block_layout.h).
class BlockWeight final : public CpuWeight {
 public:
  BlockWeight(const TensorView& w, WeightPiece panels) : CpuWeight(w), panels_(std::move(panels)) {}
  std::size_t owned_bytes() const override { return panels_.size_bytes(); }
  const std::byte* panels(std::int64_t matrix) const {
    return panels_.data() +
           matrix * block::Panels(outputs()) * block::PanelBytes(dtype(), inputs());
  }

 private:
  WeightPiece panels_;
};

}  // namespace kvcache::cpu
