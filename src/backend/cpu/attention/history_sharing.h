// How far histories are the same: the same cells at the same positions. Sequences that were
// copied from one another share a beginning so, and so do the branches of a tree of drafted tokens.
//
//   a   [0 … 1000) in cells 0…
//   b   [0 … 600) in cells 0…   [600 … 700) in cells 5000…        a and b are shared until 600
//
// Thread safety: functions of their arguments.
#pragma once

#include <span>

#include "kvcache/kv.h"

namespace kvcache::cpu {

// The first position that only one of them keeps, or in cells that differ; kEndOfSequence where
// they are the same to the end. O(runs of what is shared).
// REQUIRES: runs ascend by position and never overlap.
Position SharedUntil(std::span<const HistoryRun> a, std::span<const HistoryRun> b);

// An order of histories in which neighbours share the most: of any range of histories in this
// order, all share what each two neighbours do.
bool SharingOrder(std::span<const HistoryRun> a, std::span<const HistoryRun> b);

}  // namespace kvcache::cpu
