// Cells that a snapshot or a transaction keeps. They are not overwritten while they are held.
//
// CellTable::Hold adds the references and links the hold into the table's list, because a compaction
// changes the runs of every hold.
//
// Thread safety: none. Not copyable: the table points to it.
#pragma once

#include "cache/cells/run_list.h"

namespace kvcache {

struct CellHold {
  CellHold() = default;
  CellHold(const CellHold&) = delete;
  CellHold& operator=(const CellHold&) = delete;

  RunList runs;
  bool frees = false;  // result of CellTable::FindFreeing

  // The table's list.
  CellHold* previous = nullptr;
  CellHold* next = nullptr;
  bool linked = false;
};

// The holds of a table.
class HoldList {
 public:
  bool empty() const { return first_ == nullptr; }
  CellHold* first() const { return first_; }

  void Link(CellHold& hold) {
    hold.previous = nullptr;
    hold.next = first_;
    if (first_ != nullptr) first_->previous = &hold;
    first_ = &hold;
    hold.linked = true;
  }
  void Unlink(CellHold& hold) {
    (hold.previous != nullptr ? hold.previous->next : first_) = hold.next;
    if (hold.next != nullptr) hold.next->previous = hold.previous;
    hold.linked = false;
  }
  // Empties all holds and unlinks them.
  void Abandon() {
    while (first_ != nullptr) {
      CellHold& hold = *first_;
      first_ = hold.next;
      hold.runs.Clear();
      hold.linked = false;
    }
  }

 private:
  CellHold* first_ = nullptr;
};

}  // namespace kvcache
