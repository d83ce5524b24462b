// Cells that a snapshot or a transaction keeps. They are not overwritten while they are held.
//
// CellTable::Hold adds the references and links the hold into the table's list, because a compaction
// changes the runs of every hold.
//
// Thread safety: none. Not copyable: the table points to it.
#pragma once

#include "cache/cells/linked_list.h"
#include "cache/cells/run_list.h"

namespace kvcache {

struct CellHold : ListLinks<CellHold> {
  CellHold() = default;
  CellHold(const CellHold&) = delete;
  CellHold& operator=(const CellHold&) = delete;

  RunList runs;
  bool frees = false;  // result of CellTable::FindFreeing
};
using HoldList = LinkedList<CellHold>;

}  // namespace kvcache
