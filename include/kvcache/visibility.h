// The visibility rule: which tokens of its history a query sees.
//
// A pass describes what its queries see in closed form instead of a mask. A kernel reads the
// positions of a query from VisibleRange, and their cells from the runs of its history.
//
// Thread safety: values; as thread-safe as an int. They own nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/kv.h"
#include "kvcache/types.h"

namespace kvcache {

// Positions [begin, end).
struct PositionRange {
  Position begin = 0;
  Position end = 0;
};

// The tokens that the queries of one forward pass see.
//
// Query i sees position j if two conditions hold. A run of its history holds j, and j is in
// VisibleRange(visibility, i), that is:
//   j <= positions[i]                          unless bidirectional[i]
//   j >  positions[i] - window                 if window > 0
//   j >= positions[i] - positions[i] % chunk   if chunk > 0
struct Visibility {
  std::span<const Position> positions{};             // [batch]
  std::span<const std::int32_t> history_of_query{};  // [batch]: index into `histories`
  // Each history is a list of runs, ascending by position and without overlap. It includes the
  // batch's own tokens. There is one history per sequence of the batch. In a pass of drafts there
  // is one per path instead, from the first token of the sequence to a leaf of its trees.
  // Histories may share cells; a kernel may read those once for all of them.
  std::span<const std::span<const HistoryRun>> histories{};
  std::span<const std::uint8_t> bidirectional{};  // [batch], or empty: none
  std::int32_t window = 0;                        // tokens, the query included; 0: all
  std::int32_t chunk = 0;                         // tokens; 0: not chunked
};

// Returns the positions that `query` sees, wherever its history holds them. For a bidirectional
// query `end` is kEndOfSequence. Kernels and masks both use this function.
// REQUIRES: query < visibility.positions.size(); positions >= 0.
inline PositionRange VisibleRange(const Visibility& visibility, std::size_t query) {
  const Position position = visibility.positions[query];
  Position begin = 0;
  if (visibility.window > 0) begin = std::max(begin, position - visibility.window + 1);
  if (visibility.chunk > 0) begin = std::max(begin, position - position % visibility.chunk);
  const bool all = !visibility.bidirectional.empty() && visibility.bidirectional[query] != 0;
  return {begin, all ? kEndOfSequence : position + 1};
}

}  // namespace kvcache
