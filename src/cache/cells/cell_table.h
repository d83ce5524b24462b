// The metadata of a cache: reference counts of cells, and the history of each sequence.
//
//   ref_count  0 2 2 1 1 0 0 …   number of sequences and holds that have the cell; 0: free
//   free set   the cells with ref_count 0, as a tree of bitmaps
//   history    per sequence, its runs of (position, cell, length)
//   holds      runs that snapshots and transactions keep
//   drafts     cells of tokens that belong to no sequence yet
//
// Invariants: a cell's ref_count equals the number of runs, over all sequences and holds, that cover
// it, plus one for a draft. The free set has exactly the cells with ref_count 0.
//
// Thread safety: none. Allocation: Reset, Reserve, Share, RemoveMiddle and PlanCompaction only.
// Design: docs/design/cells.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prefetch.h"
#include "cache/cells/cell_hold.h"
#include "cache/cells/cell_placement.h"
#include "cache/cells/free_cells.h"
#include "cache/cells/range_counts.h"
#include "cache/cells/run_list.h"
#include "kvcache/batch.h"
#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// Number of runs that a sequence's list has memory for at first. A sequence that grows alone has
// one run. A sequence that fills the holes of others may have many, and its list doubles when full.
inline constexpr std::size_t kInitialRuns = 64;

struct CellTableOptions {
  std::int32_t cells = 0;
  std::int32_t sequences = 0;
  std::int32_t drafts = 0;  // most drafts of one pass
  // Cells between the first cells of neighbouring sequences. Rings lie side by side: sequences ×
  // sequence_stride <= cells.
  std::int32_t sequence_stride = 0;
  Placement placement = Placement::kLinear;
  bool tracks_blocks = false;  // see FreeCells::SetBlock
  bool lowest_first = false;   // new runs begin in the lowest 64 cells that are all free
};

// Evicts positions [0, begin) of a sequence.
struct Eviction {
  SequenceId sequence{};
  Position begin = 0;
};

// The work on bytes that remains after RemoveMiddle: first the copies, then the shifts.
struct MiddleRemoval {
  std::vector<CellMove> copies;  // from a shared cell to the sequence's own copy
  std::vector<CellRun> shifted;  // cells whose keys are rotated
};

// The moves that fill all holes before the last used cell, and the histories after them.
struct Compaction {
  std::vector<CellMove> moves;  // ascending in from and to; from used to free cells
  std::vector<RunList> histories;
  std::vector<RunList> holds;  // in the order of the table's list
};

class CellTable {
 public:
  // Makes all cells free and all sequences empty. May throw std::bad_alloc.
  void Reset(const CellTableOptions& options);

  std::int32_t cells() const { return ref_counts_.size(); }
  std::int32_t sequences() const { return static_cast<std::int32_t>(histories_.size()); }
  std::int32_t free_cells() const { return free_.count(); }
  std::int32_t ref_count(std::int32_t cell) const { return ref_counts_[cell]; }

  bool Knows(SequenceId id) const { return Index(id) >= 0 && Index(id) < sequences(); }
  // REQUIRES, here and below: Knows(id).
  const RunList& history(SequenceId id) const { return histories_[Index(id)]; }

  // Reserves memory for `more` runs of the sequence. Returns false if there is none.
  [[nodiscard]] bool Reserve(SequenceId id, std::size_t more) {
    return histories_[Index(id)].Reserve(more);
  }

  // Ask memory for what Claim looks at for the next position: first the end of the history, then the cell behind it.
  // Time between the two calls, such as that for other sequences, lets the second one not wait.
  void PrefetchHistory(SequenceId id) const {
    const std::span<const HistoryRun> runs = history(id).runs();
    if (!runs.empty()) PrefetchToWrite(&runs.back());
  }
  void PrefetchCell(SequenceId id) const {
    const std::span<const HistoryRun> runs = history(id).runs();
    if (runs.empty()) return;
    const std::int32_t cell = runs.back().cell + runs.back().length;
    ref_counts_.Prefetch(cell);
    free_.Prefetch(cell);
  }

  // Claims a cell for `position` of the sequence and returns it: the cell after its predecessor's,
  // else its preferred cell, else the next free cell after that, wrapping around. In a ring the
  // preferred cell comes first. O(log cells + runs behind the position).
  // REQUIRES: the sequence does not hold the position; there is a free cell; Reserve was called.
  std::int32_t Claim(SequenceId id, Position position);

  // Claims a cell for a draft and returns it: preferably the cell after `previous`, which is its
  // parent's cell or kNoCell; in a ring the next free cell from its preferred cell on.
  // REQUIRES: there is a free cell; there are fewer drafts than CellTableOptions::drafts.
  std::int32_t ClaimDraft(SequenceId id, Position position, std::int32_t previous);
  // Returns the rank of `cell` in the order in which the sequence claims cells for tokens from
  // `position` on; 0 is first. REQUIRES: `position` is the sequence's next one.
  std::int64_t Rank(SequenceId id, Position position, std::int32_t cell) const;
  // The cells of the drafts, in the order in which they were claimed.
  std::span<const std::int32_t> drafts() const { return drafts_; }
  // Appends a draft's cell to the sequence.
  // REQUIRES: position >= history(id).length(); Reserve was called.
  void AcceptDraft(SequenceId id, Position position, std::int32_t cell);
  // Releases the cells of all drafts. Accepted ones stay, as their sequences hold them.
  void DropDrafts();
  // The number of cells that are free once the drafts are dropped. REQUIRES: none is accepted.
  std::int32_t cells_without_drafts() const {
    return free_cells() + static_cast<std::int32_t>(drafts_.size());
  }

  // Drops positions [length, ∞).
  void Truncate(SequenceId id, Position length);
  // Drops positions [0, begin).
  void DropBefore(SequenceId id, Position begin);
  // Returns the number of cells that these evictions would free. O(cells evicted).
  // REQUIRES: each sequence at most once.
  std::int32_t CountFreed(std::span<const Eviction> evictions) const;

  // Drops dst's content and lets dst share src's cells at positions [0, length). O(runs), and O(1)
  // per cell that dst drops.
  // Errors: kOutOfMemory, nothing changed. REQUIRES: src != dst.
  Status Share(SequenceId src, SequenceId dst, Position length);

  // Adds a reference to each cell of the hold's runs, which may then not be changed. O(runs).
  // REQUIRES: every cell has a reference; the table outlives the hold or Unhold is called.
  void Hold(CellHold& hold);
  // Adds one more run, or a new cell for a position of the sequence, to a hold that is in the table.
  // REQUIRES: memory for the run in the hold; the position is above the hold's; a free cell.
  void HoldRun(CellHold& hold, const HistoryRun& run);
  void HoldClaim(CellHold& hold, SequenceId id, Position position);
  // Moves the runs from `position` on to `later`. A hold without runs leaves the table.
  // REQUIRES: `later` is empty and has memory for all runs.
  void CutHold(CellHold& hold, Position position, CellHold& later);
  // Drops the hold's references and empties it. Does nothing if it holds nothing.
  void Unhold(CellHold& hold);
  // The holds in the table. Abandoning them changes no cell.
  HoldList& holds() { return holds_; }
  const HoldList& holds() const { return holds_; }
  // Returns the number of cells that are free once the drafts, these evictions and all of `holds`
  // are gone. O(cells concerned).
  std::int32_t CountAvailable(std::span<const Eviction> evictions,
                              std::span<CellHold* const> holds) const;
  // Notes in CellHold::frees which of these holds have a cell that would be free without them.
  void FindFreeing(std::span<const Eviction> evictions, std::span<CellHold* const> holds) const;
  // Makes `hold` the content of the sequence from `begin` on, after the sequence's own positions
  // below `begin`, and empties the hold. O(runs), and O(1) per cell that the sequence drops.
  // REQUIRES: Reserve for its runs and one more.
  void Adopt(SequenceId id, Position begin, CellHold& hold);
  // Moves the runs of `from` behind those of `to`. O(runs).
  // REQUIRES: `to` has memory for the runs and is in the table; `from` begins after its end.
  void MoveHold(CellHold& from, CellHold& to);

  // Drops positions [begin, end) and moves later ones down by end - begin. Later cells that other
  // sequences share are replaced by copies. Drops the drafts.
  // Errors: kCacheFull with the numbers, kOutOfMemory; nothing changed.
  Result<MiddleRemoval> RemoveMiddle(SequenceId id, Position begin, Position end);
  // Returns the kCacheFull error that RemoveMiddle would return without these holds, or Ok.
  Status CheckRemoveMiddle(SequenceId id, Position end, std::span<CellHold* const> holds) const;

  // The free cells and the blocks, for what needs their memory only.
  FreeCells& free() { return free_; }
  const FreeCells& free() const { return free_; }
  // Returns the number of blocks that claims for so many more tokens of each sequence would add.
  std::int64_t CountNewBlocks(std::span<const SequenceLength> more) const;

  // Plans moves of the last used cells into the holes. O(cells). Errors: kOutOfMemory.
  Result<Compaction> PlanCompaction() const;
  // Applies the plan to the metadata. REQUIRES: nothing has changed since PlanCompaction.
  void Apply(Compaction compaction);

 private:
  // Adds `by` to the ref_count of the evicted cells. Returns how many of them have 0 then.
  std::int32_t AddReferences(std::span<const Eviction> evictions, std::int32_t by) const;
  void Release(std::int32_t cell, std::int32_t length);
  void MoveDown(SequenceId id, const HistoryRun& run, Position offset, MiddleRemoval& removal);

  // Changed for a moment by const functions that count what a change would free or touch.
  mutable RangeCounts ref_counts_;
  mutable FreeCells free_;
  CellPlacement placement_;
  std::vector<std::int32_t> drafts_;
  std::vector<RunList> histories_;  // [sequences]
  HoldList holds_;
};

}  // namespace kvcache
