// Cells that several owners may share: a count of owners each, and which have none.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

#include "cache/free_set.h"

namespace kvcache {

class RefCountedCells {
 public:
  // May throw std::bad_alloc.
  void Reset(std::int32_t cells) {
    ref_counts_.assign(cells, 0);
    free_.Reset(cells);
  }

  std::int32_t size() const { return static_cast<std::int32_t>(ref_counts_.size()); }
  std::int32_t free_cells() const { return free_.count(); }
  std::int32_t ref_count(std::int32_t cell) const { return ref_counts_[cell]; }

  // A cell without owners at or after `from`, around the end, which now has one.
  // REQUIRES: there is one.
  std::int32_t Take(std::int32_t from) {
    std::int32_t cell = free_.NextFrom(from);
    if (cell == FreeSet::kNone) cell = free_.NextFrom(0);
    assert(cell != FreeSet::kNone);
    free_.Erase(cell);
    ref_counts_[cell] = 1;
    return cell;
  }

  // REQUIRES, of both: the cell has an owner.
  void Share(std::int32_t cell) { ++ref_counts_[cell]; }
  void Release(std::int32_t cell) {
    if (--ref_counts_[cell] == 0) free_.Insert(cell);
  }

 private:
  std::vector<std::int32_t> ref_counts_;  // [cells]
  FreeSet free_;
};

}  // namespace kvcache
