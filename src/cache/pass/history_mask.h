// Visibility as a mask, for kernels that read a contiguous range of cells.
//
// The mask costs O(history × batch), so it is built on request only, once per pass.
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"
#include "kvcache/visibility.h"

namespace kvcache {

// Returns the cells from the first to the last that any query sees, with both ends rounded outwards
// to a multiple of `padding`. The length is 0 if no query sees a cell.
CellRun VisibleCells(const Visibility& visibility, std::int32_t padding);

class HistoryMask {
 public:
  static bool Supports(DType type) { return type == DType::kF32 || type == DType::kF16; }

  // Builds a mask [cells.length, rows]: 0 if query `row` sees the cell, -inf elsewhere and in the
  // rows past the batch. Errors: kOutOfMemory; the mask is then empty.
  // REQUIRES: Supports(type); rows >= the batch's size; `cells` contains every visible cell.
  Status Build(const Visibility& visibility, const CellRun& cells, std::int64_t rows, DType type);

  // Valid until the next Build.
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> values_;
  TensorView view_;
};

}  // namespace kvcache
