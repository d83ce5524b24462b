// Who uses which cell: the metadata of a cache, without its bytes.
//
//   users     0 2 2 1 1 0 0 …        in how many sequences a cell is seen; 0: free
//   free set  the cells with no users, as a tree of bitmaps
//   history   per sequence, its runs of (position, cell, length)
//
// Invariants: a cell's users equals the number of runs, over all sequences, that cover it; the
// free set holds exactly the cells without users.
//
// Thread safety: none. Allocation: Reset, Reserve, Share and RemoveMiddle only.
// Design: docs/design/cells.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/free_set.h"
#include "cache/run_list.h"
#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

struct CellTableOptions {
  std::int32_t cells = 0;
  std::int32_t sequences = 0;
  std::int32_t home_stride = 0;  // cells between the homes of neighbouring sequences
};

// What is left to do with the bytes after the middle of a sequence was removed.
struct MiddleRemoval {
  std::vector<CellMove> copies;  // first: a shared cell's contents, to the sequence's own cell
  std::vector<CellRun> shifted;  // then: the cells whose keys turn
};

class CellTable {
 public:
  // All cells free, all sequences empty. May throw std::bad_alloc.
  void Reset(const CellTableOptions& options);

  std::int32_t cells() const { return static_cast<std::int32_t>(users_.size()); }
  std::int32_t sequences() const { return static_cast<std::int32_t>(histories_.size()); }
  std::int32_t free_cells() const { return free_.count(); }
  bool IsFree(std::int32_t cell) const { return free_.Contains(cell); }
  std::int32_t users(std::int32_t cell) const { return users_[cell]; }

  bool Knows(SequenceId id) const { return Index(id) >= 0 && Index(id) < sequences(); }
  // REQUIRES, here and below: Knows(id).
  const RunList& history(SequenceId id) const { return histories_[Index(id)]; }

  // Makes room for `more` runs of the sequence; false when there is no memory.
  [[nodiscard]] bool Reserve(SequenceId id, std::size_t more) {
    return histories_[Index(id)].Reserve(more);
  }

  // Gives position `position` of the sequence a cell and returns it: the one after its
  // predecessor's, else its home, else the next free one after that, around the end.
  // REQUIRES: not held; a free cell; room reserved.
  std::int32_t Claim(SequenceId id, Position position);

  // Drops positions [length, ∞).
  void Truncate(SequenceId id, Position length);

  // dst forgets what it holds and sees src's cells at positions [0, length). O(length).
  // Errors: kOutOfMemory, nothing changed. REQUIRES: src != dst.
  Status Share(SequenceId src, SequenceId dst, Position length);

  // Drops positions [begin, end) and moves later ones down by end - begin. Later cells that
  // other sequences see too are replaced by cells of the sequence's own.
  // Errors: kCacheFull with the numbers, kOutOfMemory; nothing changed.
  Result<MiddleRemoval> RemoveMiddle(SequenceId id, Position begin, Position end);

 private:
  std::int32_t Place(SequenceId id, Position position) const;
  void Release(std::int32_t cell, std::int32_t length);
  // Cells at positions [begin, ∞) that other sequences see too.
  std::int64_t CountShared(SequenceId id, Position begin) const;
  void MoveDown(SequenceId id, const HistoryRun& run, Position offset, MiddleRemoval& removal);

  std::vector<std::int32_t> users_;  // [cells]
  FreeSet free_;
  std::vector<RunList> histories_;  // [sequences]
  std::int64_t home_stride_ = 0;
};

}  // namespace kvcache
