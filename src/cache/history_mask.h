// Visibility written out: which cells a pass needs, and a mask over them.
//
// For kernels that take a contiguous history. O(history × batch), so made on request only, once
// per pass.
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// The cells from the first to the last that any query sees, both ends rounded out to a multiple
// of `padding`; length 0 when nothing is seen.
CellRun VisibleCells(const Visibility& visibility, std::int32_t padding);

class HistoryMask {
 public:
  static bool Supports(DType type) { return type == DType::kF32 || type == DType::kF16; }

  // Writes [cells.length, rows]: 0 where query `row` sees the cell, -inf elsewhere and in the
  // rows past the batch. Errors: kOutOfMemory; the mask is then empty.
  // REQUIRES: Supports(type); rows >= the batch's size; cells covers all that is seen.
  Status Build(const Visibility& visibility, const CellRun& cells, std::int64_t rows, DType type);

  // Valid until the next Build.
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> values_;
  TensorView view_;
};

}  // namespace kvcache
