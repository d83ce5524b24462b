// Cells with reference counts, and the set of free cells.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

#include "cache/cells/free_set.h"

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

  // Takes the first free cell at or after `from`, wrapping around. Returns it with reference
  // count 1. REQUIRES: there is a free cell.
  std::int32_t Take(std::int32_t from) {
    std::int32_t cell = free_.NextFrom(from);
    if (cell == FreeSet::kNone) cell = free_.NextFrom(0);
    assert(cell != FreeSet::kNone);
    free_.Erase(cell);
    ref_counts_[cell] = 1;
    return cell;
  }

  // Adds and drops a reference. REQUIRES: the cell has one.
  void Share(std::int32_t cell) { ++ref_counts_[cell]; }
  void Release(std::int32_t cell) {
    if (--ref_counts_[cell] == 0) free_.Insert(cell);
  }

 private:
  std::vector<std::int32_t> ref_counts_;  // [cells]
  FreeSet free_;
};

}  // namespace kvcache
