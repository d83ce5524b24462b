// One sequence's history: its positions and their cells.
//
//   positions   0 1 2 3 4 5 6 7      runs  {position 0, cell 0, length 5}
//   cells       0 1 2 3 4 9 10 11          {position 5, cell 9, length 3}
//
// Runs ascend by position, never overlap, and are merged if both position and cell continue.
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

  // The last position + 1; 0 if empty.
  Position length() const { return runs_.empty() ? 0 : End(runs_.back()); }

  // Returns the cell of a position, or kNoCell. O(log runs); O(1) in the last run.
  std::int32_t CellOf(Position position) const;

  // Returns the index of the first run that ends after `position`, or the number of runs.
  std::size_t FirstEndingAfter(Position position) const;

  // Reserves memory for `more` runs. Returns false, with the list unchanged, if there is none.
  [[nodiscard]] bool Reserve(std::size_t more);

  // Adds a position. REQUIRES: the list does not hold it; Reserve was called.
  void Insert(Position position, std::int32_t cell);
  // Adds a run after all others. REQUIRES: run.position >= length(); Reserve was called.
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

// Returns whether `next` continues `run` in both position and cell.
inline bool Continues(const HistoryRun& run, const HistoryRun& next) {
  return run.position + run.length == next.position && run.cell + run.length == next.cell;
}

// Returns the part of `run` in positions [begin, end); its length is 0 if there is none.
HistoryRun Clip(const HistoryRun& run, Position begin, Position end);

}  // namespace kvcache
