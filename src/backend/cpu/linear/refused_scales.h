// The first row of a weight whose scales kernels cannot multiply (tensor/scale_check.h), found while the
// weight is packed by several threads.
//
// Thread safety: CheckRows may be called from any thread; status() when no call runs.
#pragma once

#include <atomic>
#include <cstdint>

#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache::cpu {

class RefusedScales {
 public:
  // REQUIRES: w, dense rows, outlives this.
  explicit RefusedScales(const TensorView& w) : w_(w), first_(w.dims[1] * w.dims[2]) {}

  // Looks at rows [row, end), which count on over all matrices of a stack.
  void CheckRows(std::int64_t row, std::int64_t end);
  // kCorrupt with the matrix, the row, the block and the rule, for the first refused row.
  Status status() const;

 private:
  const TensorView& w_;
  std::atomic<std::int64_t> first_;  // all rows: none
};

}  // namespace kvcache::cpu
