// Who uses which cell: the metadata of a cache, without its bytes.
//
//   ref_count     0 2 2 1 1 0 0 …        in how many sequences a cell is seen; 0: free
//   free set  the cells with no ref_count, as a tree of bitmaps
//   history   per sequence, its runs of (position, cell, length)
//   drafts    cells of tokens that no sequence keeps yet
//
// Invariants: a cell's ref_count equals the number of runs, over all sequences, that cover it, and
// one more for a draft; the free set holds exactly the cells without ref_count.
//
// Thread safety: none. Allocation: Reset, Reserve, Share, RemoveMiddle and PlanCompaction only.
// Design: docs/design/cells.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/free_set.h"
#include "cache/run_list.h"
#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// Runs a sequence can have before its list grows. A sequence that grows alone has one; one that
// fills others' holes may have many, and its list then doubles now and then.
inline constexpr std::size_t kInitialRuns = 64;

// Where a sequence's tokens go by preference, from the sequence's own first cell on.
enum class Placement : std::uint8_t {
  kLinear,  // position after position
  kRing,    // around a stretch of its own: for sequences that lose their oldest tokens
};

struct CellTableOptions {
  std::int32_t cells = 0;
  std::int32_t sequences = 0;
  std::int32_t drafts = 0;           // at most, at once
  std::int32_t sequence_stride = 0;  // cells between the homes of neighbouring sequences
  Placement placement = Placement::kLinear;
};

// Positions [0, begin) of a sequence, to be let go.
struct Eviction {
  SequenceId sequence{};
  Position begin = 0;
};

// What is left to do with the bytes after the middle of a sequence was removed.
struct MiddleRemoval {
  std::vector<CellMove> copies;  // first: a shared cell's contents, to the sequence's own cell
  std::vector<CellRun> shifted;  // then: the cells whose keys turn
};

// Moves that leave no hole before the last cell used, and the histories after them.
struct Compaction {
  std::vector<CellMove> moves;  // ascending at both ends; from used cells to free ones
  std::vector<RunList> histories;
};

class CellTable {
 public:
  // All cells free, all sequences empty. May throw std::bad_alloc.
  void Reset(const CellTableOptions& options);

  std::int32_t cells() const { return static_cast<std::int32_t>(ref_counts_.size()); }
  std::int32_t sequences() const { return static_cast<std::int32_t>(histories_.size()); }
  std::int32_t free_cells() const { return free_.count(); }
  bool IsFree(std::int32_t cell) const { return free_.Contains(cell); }
  std::int32_t ref_count(std::int32_t cell) const { return ref_counts_[cell]; }

  bool Knows(SequenceId id) const { return Index(id) >= 0 && Index(id) < sequences(); }
  // REQUIRES, here and below: Knows(id).
  const RunList& history(SequenceId id) const { return histories_[Index(id)]; }

  // Makes room for `more` runs of the sequence; false when there is no memory.
  [[nodiscard]] bool Reserve(SequenceId id, std::size_t more) {
    return histories_[Index(id)].Reserve(more);
  }

  // Gives position `position` of the sequence a cell and returns it: the one after its
  // predecessor's, else its home, else the next free one after that, around the end. In a ring its
  // home comes first.
  // REQUIRES: not held; a free cell; room reserved.
  std::int32_t Claim(SequenceId id, Position position);

  // Gives a token that no sequence keeps a cell: by preference the one after `previous`, that of
  // the token before it; in a ring the next one from its home. REQUIRES: a free cell; fewer drafts
  // than there may be.
  std::int32_t ClaimDraft(SequenceId id, Position position, std::int32_t previous);
  // How early a cell comes for tokens from `position` on, the sequence's next one: 0 is best.
  std::int64_t Rank(SequenceId id, Position position, std::int32_t cell) const;
  // In the order in which they were claimed.
  std::span<const std::int32_t> drafts() const { return drafts_; }
  // The sequence sees `cell`, which a draft has, at its end.
  // REQUIRES: position >= history(id).length(); room reserved.
  void AcceptDraft(SequenceId id, Position position, std::int32_t cell);
  // Drafts lose their cells; those that a sequence sees stay.
  void DropDrafts();
  // Free, or as soon as the drafts are dropped. REQUIRES: none of them is kept.
  std::int32_t cells_without_drafts() const {
    return free_cells() + static_cast<std::int32_t>(drafts_.size());
  }

  // Drops positions [length, ∞).
  void Truncate(SequenceId id, Position length);
  // Drops positions [0, begin).
  void DropBefore(SequenceId id, Position begin);
  // How many cells would become free if all of these happened. O(cells let go).
  // REQUIRES: each sequence at most once.
  std::int32_t CountFreed(std::span<const Eviction> evictions);

  // dst forgets what it holds and sees src's cells at positions [0, length). O(length).
  // Errors: kOutOfMemory, nothing changed. REQUIRES: src != dst.
  Status Share(SequenceId src, SequenceId dst, Position length);

  // Drops positions [begin, end) and moves later ones down by end - begin. Later cells that
  // other sequences see too are replaced by cells of the sequence's own. Drafts are dropped.
  // Errors: kCacheFull with the numbers, kOutOfMemory; nothing changed.
  Result<MiddleRemoval> RemoveMiddle(SequenceId id, Position begin, Position end);
  // The error that it would return for want of cells.
  Status CheckRemoveMiddle(SequenceId id, Position end) const;

  // How to fill the holes with the last cells used; O(cells). Errors: kOutOfMemory.
  Result<Compaction> PlanCompaction() const;
  // Makes it so. REQUIRES: nothing has changed since the plan.
  void Apply(Compaction compaction);

 private:
  // Adds `by` to the ref_count of the cells that the evictions let go of; how many have none then.
  std::int32_t AddReferences(std::span<const Eviction> evictions, std::int32_t by);
  std::int32_t PreferredCell(SequenceId id, Position position) const;
  // The first cell of the sequence's stretch of a ring.
  std::int32_t RingOf(SequenceId id) const {
    return static_cast<std::int32_t>(Index(id) * sequence_stride_);
  }
  // `previous`: the cell of the token before, or RunList::kNoCell.
  std::int32_t Place(SequenceId id, Position position, std::int32_t previous) const;
  std::int32_t PlaceDraft(SequenceId id, Position position, std::int32_t previous) const;
  void Release(std::int32_t cell, std::int32_t length);
  // Cells at positions [begin, ∞) that other sequences see too.
  std::int64_t CountShared(SequenceId id, Position begin) const;
  void MoveDown(SequenceId id, const HistoryRun& run, Position offset, MiddleRemoval& removal);

  std::vector<std::int32_t> ref_counts_;  // [cells]
  FreeSet free_;
  std::vector<std::int32_t> drafts_;
  std::vector<RunList> histories_;  // [sequences]
  std::int64_t sequence_stride_ = 0;
  Placement placement_ = Placement::kLinear;
};

}  // namespace kvcache
