// One sequence's history: which positions it holds, and in which cells.
//
//   positions   0 1 2 3 4 5 6 7      runs  {position 0, cell 0, length 5}
//   cells       0 1 2 3 4 9 10 11          {position 5, cell 9, length 3}
//
// Runs ascend by position, never overlap, and are merged wherever both position and cell go on.
// Thread safety: none. Only Reserve allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/kv.h"

namespace kvcache {

class RunList {
 public:
  static constexpr std::int32_t kNoCell = -1;

  std::span<const HistoryRun> runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }

  // One past the last position held; 0 when empty.
  Position length() const { return runs_.empty() ? 0 : End(runs_.back()); }

  // The cell of a position, or kNoCell.
  std::int32_t CellOf(Position position) const;

  // The first run that ends after `position`: the one that holds it, or the next; or size().
  std::size_t FirstEndingAfter(Position position) const;

  // Makes room for `more` runs. Returns whether there is memory; the list is as it was if not.
  [[nodiscard]] bool Reserve(std::size_t more);

  // Adds a position. REQUIRES: not held; room reserved.
  void Insert(Position position, std::int32_t cell);
  // Adds a run after all others. REQUIRES: run.position >= length(); room reserved.
  void Append(const HistoryRun& run);
  // Drops positions [length, ∞).
  void Truncate(Position length);
  // Drops positions [0, begin).
  void DropBefore(Position begin);
  void Clear() { runs_.clear(); }

  static Position End(const HistoryRun& run) { return run.position + run.length; }

 private:
  std::vector<HistoryRun> runs_;
};

// Does `next` go on where `run` stops, in position and in cell?
inline bool Continues(const HistoryRun& run, const HistoryRun& next) {
  return run.position + run.length == next.position && run.cell + run.length == next.cell;
}

// The part of `run` in positions [begin, end); length 0 when there is none.
HistoryRun Clip(const HistoryRun& run, Position begin, Position end);

}  // namespace kvcache
