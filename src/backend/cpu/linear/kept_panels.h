// Panels of a weight that a store kept. A matrix's panels are checked when it is first multiplied. If they are
// damaged, the matrix is packed again from its rows, in memory of its own.
//
// Thread safety: as linear.h says: one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/linear/weight_memory.h"
#include "kvcache/panel_store.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

class KeptPanels {
 public:
  // `panels` are those that `store` found for `w`, whose rows must outlive this.
  KeptPanels(const TensorView& w, std::shared_ptr<PanelStore> store, const std::byte* panels);

  const std::byte* data(std::int64_t matrix) const {
    return data_[static_cast<std::size_t>(matrix)];
  }
  bool IsChecked(std::int64_t matrix) const {
    return is_checked_[static_cast<std::size_t>(matrix)];
  }
  // Checks a matrix. Its data() may change. Errors, which change nothing: those of PackWeight.
  Status Check(ThreadPool& pool, std::int64_t matrix);

 private:
  TensorView w_;
  std::shared_ptr<PanelStore> store_;
  // Of each matrix:
  std::vector<const std::byte*> data_;
  std::vector<bool> is_checked_;
  std::vector<WeightPiece> packed_;  // again
  WeightMemory memory_;
};

}  // namespace kvcache::cpu
