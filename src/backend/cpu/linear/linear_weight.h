// Weight matrices, or stacks of matrices, in the forms that the linear layers' kernels read.
//
// Thread safety: immutable once made, but for kept panels, which Linear checks, and for placing: one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "backend/cpu/linear/block/linear_block.h"
#include "backend/cpu/linear/kept_panels.h"
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
  // Returns whether the weight is still to be placed on memory nodes (weight_nodes.h): true the first time.
  bool TakePlacing() const { return !std::exchange(is_placed_, true); }

 private:
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::int64_t matrices_;
  DType dtype_;
  mutable bool is_placed_ = false;
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
  // Returns the rows of all matrices.
  std::span<const std::byte> bytes() const {
    return {rows_, static_cast<std::size_t>(matrices() * outputs() * BytesOf(dtype(), inputs()))};
  }

 private:
  const std::byte* rows_;
};

// Weights of block types: in panels of 16 rows (common/block_layout.h), a copy or those that a store kept.
class BlockWeight final : public CpuWeight {
 public:
  BlockWeight(const TensorView& w, WeightPiece panels)
      : CpuWeight(w), size_bytes_(panels.size_bytes()), packed_(std::move(panels)) {}
  BlockWeight(const TensorView& w, std::size_t size_bytes, std::unique_ptr<KeptPanels> kept)
      : CpuWeight(w), size_bytes_(size_bytes), kept_(std::move(kept)) {}
  // Kept panels count too: they are in memory for as long as the weight is used.
  std::size_t owned_bytes() const override { return size_bytes_; }
  const std::byte* panels(std::int64_t matrix) const {
    if (kept_ != nullptr) return kept_->data(matrix);
    return packed_->data() +
           matrix * block::Panels(outputs()) * block::PanelBytes(dtype(), inputs());
  }
  // Returns the panels that a store kept, of all matrices. REQUIRES: no matrix was checked yet.
  std::span<const std::byte> kept_bytes() const { return {kept_->data(0), size_bytes_}; }
  // Returns the panels if they have to be checked before the matrix is multiplied; else null.
  KeptPanels* ToCheck(std::int64_t matrix) const {
    return kept_ == nullptr || kept_->IsChecked(matrix) ? nullptr : kept_.get();
  }

 private:
  std::size_t size_bytes_;
  std::optional<WeightPiece> packed_;  // or
  std::unique_ptr<KeptPanels> kept_;
};

}  // namespace kvcache::cpu
