// Shared prefixes of histories: the same cells at the same positions. Copies of a sequence share a
// prefix in this way, and so do the branches of a tree of drafted tokens.
//
//   a   [0 … 1000) in cells 0…
//   b   [0 … 600) in cells 0…   [600 … 700) in cells 5000…        a and b are shared until 600
//
// Thread safety: pure functions.
#pragma once

#include <span>

#include "kvcache/kv.h"

namespace kvcache::cpu {

// Returns the first position that only one of the histories retains, or that they retain in
// different cells; kEndOfSequence if they are identical. O(runs of the shared prefix). REQUIRES:
// runs ascend by position and never overlap.
Position SharedUntil(std::span<const HistoryRun> a, std::span<const HistoryRun> b);

// A strict weak order of histories that makes neighbours of those that share the longest prefixes:
// all histories of a range in this order share the shortest prefix that two neighbours share.
bool SharingOrder(std::span<const HistoryRun> a, std::span<const HistoryRun> b);

}  // namespace kvcache::cpu
