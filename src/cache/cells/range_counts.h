// A count for each cell, with additions to whole ranges of cells in O(log cells).
//
//   level 2   [    0    |   +1    | … ]     for 4,096 cells each
//   level 1   [ 0 | +1 | 0 | … ]            for 64 cells each
//   level 0   [ 0 1 1 0 … ]                 for one cell each
//
// The count of a cell is the sum over its levels. A range is added as few aligned blocks as
// possible. A level may hold a negative number: a part of an added range that is subtracted again
// need not follow the same blocks.
//
// Thread safety: none. Only Reset allocates.
// Source: a segment tree with range addition and point queries, with 64 children per node.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"

namespace kvcache {

class RangeCounts {
 public:
  // Makes all counts 0. May throw std::bad_alloc.
  void Reset(std::int32_t cells);

  std::int32_t size() const { return cells_; }

  std::int32_t operator[](std::int32_t cell) const {
    std::int32_t count = counts_[cell];
    if (!uses_blocks_) return count;
    for (int level = 1; level < kLevels; ++level) {
      count += counts_[begin_[level] + (cell >> (kShift * level))];
    }
    return count;
  }

  void Add(std::int32_t cell, std::int32_t by) { counts_[cell] += by; }
  // Asks memory for the count of a cell. REQUIRES: 0 <= cell <= size().
  void Prefetch(std::int32_t cell) const { PrefetchToWrite(counts_.data() + cell); }
  // Adds `by` to the cells [begin, end).
  void AddRange(std::int32_t begin, std::int32_t end, std::int32_t by);

 private:
  static constexpr int kShift = 6;   // a block has 64 blocks of the level below
  static constexpr int kLevels = 4;  // up to 262,144 cells per block

  std::int32_t cells_ = 0;
  bool uses_blocks_ = false;                   // some count above level 0 may not be 0
  std::vector<std::int32_t> counts_;           // all levels, level 0 first
  std::array<std::int64_t, kLevels> begin_{};  // of each level in counts_
};

}  // namespace kvcache
