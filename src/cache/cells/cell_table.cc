#include "cache/cells/cell_table.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Adds a copy of one cell, merged with the last one if it continues it.
void AddCopy(std::vector<CellMove>& copies, std::int32_t from, std::int32_t to) {
  if (!copies.empty()) {
    CellMove& last = copies.back();
    if (last.from + last.length == from && last.to + last.length == to) {
      ++last.length;
      return;
    }
  }
  copies.push_back({from, to, 1});
}

void AddCell(std::vector<CellRun>& runs, std::int32_t cell) {
  if (!runs.empty() && runs.back().cell + runs.back().length == cell) {
    ++runs.back().length;
  } else {
    runs.push_back({cell, 1});
  }
}

// Adds `by` to the count of the run's cells. Returns how many of them have 0 then.
std::int32_t AddReferences(RangeCounts& counts, const HistoryRun& run, std::int32_t by) {
  std::int32_t unused = 0;
  for (std::int32_t i = run.cell; i < run.cell + run.length; ++i) {
    counts.Add(i, by);
    unused += counts[i] == 0;
  }
  return unused;
}

std::int32_t AddReferences(RangeCounts& counts, std::span<CellHold* const> holds, std::int32_t by) {
  std::int32_t unused = 0;
  for (const CellHold* hold : holds) {
    for (const HistoryRun& run : hold->runs.runs()) unused += AddReferences(counts, run, by);
  }
  return unused;
}

// Returns the number of cells at positions [begin, ∞) that other sequences share.
std::int64_t CountShared(const RangeCounts& counts, const RunList& history, Position begin) {
  std::int64_t count = 0;
  for (const HistoryRun& run : history.runs()) {
    const HistoryRun part = Clip(run, begin, kEndOfSequence);
    for (std::int32_t i = 0; i < part.length; ++i) count += counts[part.cell + i] > 1;
  }
  return count;
}

}  // namespace

void CellTable::Reset(const CellTableOptions& options) {
  ref_counts_.Reset(options.cells);
  drafts_.clear();
  drafts_.reserve(options.drafts);
  histories_.assign(options.sequences, RunList());
  for (RunList& history : histories_) {
    if (!history.Reserve(kInitialRuns)) throw std::bad_alloc();
  }
  const bool linear = options.placement == Placement::kLinear;
  assert(linear || std::int64_t{options.sequences} * options.sequence_stride <= cells());
  placement_.Reset(options.placement, options.sequence_stride, options.cells);
  free_.Reset({.cells = options.cells,
               .tracks_blocks = options.tracks_blocks,
               .tracks_words = options.lowest_first && linear});
}

std::int32_t CellTable::Claim(SequenceId id, Position position) {
  assert(free_cells() > 0);
  const std::int32_t previous = position > 0 ? history(id).CellOf(position - 1) : RunList::kNoCell;
  const std::int32_t cell = placement_.Place(free_, id, position, previous);
  free_.Use(cell);
  ref_counts_.Add(cell, 1);
  histories_[Index(id)].Insert(position, cell);
  return cell;
}

std::int64_t CellTable::Rank(SequenceId id, Position position, std::int32_t cell) const {
  const std::int32_t previous = position > 0 ? history(id).CellOf(position - 1) : RunList::kNoCell;
  return placement_.Rank(id, position, previous, cell);
}

std::int32_t CellTable::ClaimDraft(SequenceId id, Position position, std::int32_t previous) {
  assert(free_cells() > 0 && drafts_.size() < drafts_.capacity());
  const std::int32_t cell = placement_.PlaceDraft(free_, id, position, previous);
  free_.Use(cell);
  ref_counts_.Add(cell, 1);
  drafts_.push_back(cell);
  return cell;
}

void CellTable::AcceptDraft(SequenceId id, Position position, std::int32_t cell) {
  ref_counts_.Add(cell, 1);
  histories_[Index(id)].Append({position, cell, 1});
}

void CellTable::DropDrafts() {
  for (const std::int32_t cell : drafts_) Release(cell, 1);
  drafts_.clear();
}

void CellTable::Release(std::int32_t cell, std::int32_t length) {
  if (length == 1) {
    ref_counts_.Add(cell, -1);
  } else {
    ref_counts_.AddRange(cell, cell + length, -1);
  }
  for (std::int32_t i = cell; i < cell + length; ++i) {
    if (ref_counts_[i] == 0) free_.PutBack(i);
  }
}

void CellTable::Truncate(SequenceId id, Position length) {
  const std::span<const HistoryRun> runs = history(id).runs();
  for (std::size_t i = history(id).FirstEndingAfter(length); i < runs.size(); ++i) {
    const HistoryRun dropped = Clip(runs[i], length, kEndOfSequence);
    Release(dropped.cell, dropped.length);
  }
  histories_[Index(id)].Truncate(length);
}

void CellTable::DropBefore(SequenceId id, Position begin) {
  for (const HistoryRun& run : history(id).runs()) {
    if (run.position >= begin) break;
    const HistoryRun dropped = Clip(run, 0, begin);
    Release(dropped.cell, dropped.length);
  }
  histories_[Index(id)].DropBefore(begin);
}

std::int32_t CellTable::AddReferences(std::span<const Eviction> evictions, std::int32_t by) const {
  std::int32_t unused = 0;
  for (const auto& [id, begin] : evictions) {
    for (const HistoryRun& run : history(id).runs()) {
      if (run.position >= begin) break;
      unused += kvcache::AddReferences(ref_counts_, Clip(run, 0, begin), by);
    }
  }
  return unused;
}

// A cell that several evictions share becomes free with the last of them only. So the reference
// counts are decremented, the zeros are counted, and the counts are restored.
std::int32_t CellTable::CountFreed(std::span<const Eviction> evictions) const {
  const std::int32_t freed = AddReferences(evictions, -1);
  AddReferences(evictions, 1);
  return freed;
}

std::int32_t CellTable::CountAvailable(std::span<const Eviction> evictions,
                                       std::span<CellHold* const> holds) const {
  std::int32_t available = cells_without_drafts();
  available += AddReferences(evictions, -1);
  available += kvcache::AddReferences(ref_counts_, holds, -1);
  kvcache::AddReferences(ref_counts_, holds, 1);
  AddReferences(evictions, 1);
  return available;
}

void CellTable::FindFreeing(std::span<const Eviction> evictions,
                            std::span<CellHold* const> holds) const {
  AddReferences(evictions, -1);
  kvcache::AddReferences(ref_counts_, holds, -1);
  for (CellHold* hold : holds) {
    hold->frees = false;
    for (const HistoryRun& run : hold->runs.runs()) {
      for (std::int32_t i = run.cell; i < run.cell + run.length && !hold->frees; ++i) {
        hold->frees = ref_counts_[i] == 0;
      }
    }
  }
  kvcache::AddReferences(ref_counts_, holds, 1);
  AddReferences(evictions, 1);
}

void CellTable::Hold(CellHold& hold) {
  assert(!hold.listed);
  for (const HistoryRun& run : hold.runs.runs()) {
    ref_counts_.AddRange(run.cell, run.cell + run.length, 1);
  }
  holds_.Add(hold);
}

void CellTable::HoldRun(CellHold& hold, const HistoryRun& run) {
  ref_counts_.AddRange(run.cell, run.cell + run.length, 1);
  hold.runs.Append(run);
}

// Prefers the lane of the position, so that bytes are copied in whole tiles.
void CellTable::HoldClaim(CellHold& hold, SequenceId id, Position position) {
  assert(free_cells() > 0);
  const std::int32_t previous =
      hold.runs.length() == position ? hold.runs.CellOf(position - 1) : RunList::kNoCell;
  std::int32_t cell = placement_.Place(free_, id, position, previous);
  if (previous == RunList::kNoCell || cell != previous + 1) {
    const std::int32_t aligned = cell + ((position - cell) % kCellTile + kCellTile) % kCellTile;
    if (aligned < cells() && free_.Contains(aligned)) cell = aligned;
  }
  free_.Use(cell);
  ref_counts_.Add(cell, 1);
  hold.runs.Append({position, cell, 1});
}

void CellTable::CutHold(CellHold& hold, Position position, CellHold& later) {
  if (hold.runs.length() <= position) return;
  if (hold.runs.runs().front().position >= position) {
    std::swap(hold.runs, later.runs);
  } else {
    const std::span<const HistoryRun> runs = hold.runs.runs();
    for (std::size_t i = hold.runs.FirstEndingAfter(position); i < runs.size(); ++i) {
      later.runs.Append(Clip(runs[i], position, kEndOfSequence));
    }
    hold.runs.Truncate(position);
  }
  holds_.Add(later);
  if (hold.runs.empty()) holds_.Remove(hold);
}

void CellTable::Unhold(CellHold& hold) {
  if (!hold.listed) return;
  for (const HistoryRun& run : hold.runs.runs()) Release(run.cell, run.length);
  hold.runs.Clear();
  holds_.Remove(hold);
}

// Positions that the sequence and the hold have in the same cells stay as they are, so that a
// restore costs no more than what it changes. The sequence takes over the hold's other references.
void CellTable::Adopt(SequenceId id, Position begin, CellHold& hold) {
  RunList& target = histories_[Index(id)];
  for (const HistoryRun& run : hold.runs.runs()) {
    if (target.CellOf(run.position) != run.cell || run.position > begin) break;
    const std::size_t i = target.FirstEndingAfter(run.position);
    begin = std::min(RunList::End(run), RunList::End(target.runs()[i]));
    if (begin < RunList::End(run)) break;
  }
  Truncate(id, begin);
  for (const HistoryRun& run : hold.runs.runs()) {
    const HistoryRun both = Clip(run, 0, begin);
    if (both.length > 0) ref_counts_.AddRange(both.cell, both.cell + both.length, -1);
    const HistoryRun added = Clip(run, begin, kEndOfSequence);
    if (added.length > 0) target.Append(added);
  }
  hold.runs.Clear();
  holds_.Remove(hold);
}

void CellTable::MoveHold(CellHold& from, CellHold& to) {
  for (const HistoryRun& run : from.runs.runs()) to.runs.Append(run);
  from.runs.Clear();
  holds_.Remove(from);
}

Status CellTable::Share(SequenceId src, SequenceId dst, Position length) {
  assert(src != dst);
  RunList& target = histories_[Index(dst)];
  if (!target.Reserve(history(src).runs().size())) {
    return OutOfMemory("no memory for the runs of a shared prefix");
  }
  Truncate(dst, 0);
  for (const HistoryRun& run : history(src).runs()) {
    const HistoryRun shared = Clip(run, 0, length);
    if (shared.length == 0) break;
    ref_counts_.AddRange(shared.cell, shared.cell + shared.length, 1);
    target.Append(shared);
  }
  return Status::Ok();
}

// Appends a run that was removed from the sequence again, `offset` positions lower.
void CellTable::MoveDown(SequenceId id, const HistoryRun& run, Position offset,
                         MiddleRemoval& removal) {
  for (std::int32_t i = 0; i < run.length; ++i) {
    const Position position = run.position + i - offset;
    std::int32_t cell = run.cell + i;
    // A key contains its rotation, so the sequence needs its own copy of a shared cell.
    if (ref_counts_[cell] > 1) {
      ref_counts_.Add(cell, -1);
      const std::int32_t own = Claim(id, position);
      AddCopy(removal.copies, cell, own);
      cell = own;
    } else {
      histories_[Index(id)].Append({position, cell, 1});
    }
    AddCell(removal.shifted, cell);
  }
}

Status CellTable::CheckRemoveMiddle(SequenceId id, Position end,
                                    std::span<CellHold* const> holds) const {
  if (CountShared(ref_counts_, history(id), end) <= cells_without_drafts()) return Status::Ok();
  const std::int32_t free = cells_without_drafts() + kvcache::AddReferences(ref_counts_, holds, -1);
  const std::int64_t needed = CountShared(ref_counts_, history(id), end);
  kvcache::AddReferences(ref_counts_, holds, 1);
  if (needed <= free) return Status::Ok();
  return CacheFull(StrCat("removing a middle range copies ", needed, " shared cells; ", free,
                          " of ", cells(), " cells are free"));
}

Result<MiddleRemoval> CellTable::RemoveMiddle(SequenceId id, Position begin, Position end) {
  RunList& target = histories_[Index(id)];
  KVCACHE_RETURN_IF_ERROR(CheckRemoveMiddle(id, end, {}));
  const std::int64_t needed = CountShared(ref_counts_, history(id), end);
  MiddleRemoval removal;
  std::vector<HistoryRun> old;
  // Allocate everything first: the rest cannot fail.
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory to remove a range of positions", [&] {
    old.assign(target.runs().begin(), target.runs().end());
    removal.copies.reserve(needed);
    removal.shifted.reserve(old.size() + 2 * needed);
  }));
  // Each shared cell may split a run in three.
  if (!target.Reserve(1 + 2 * static_cast<std::size_t>(needed))) {
    return OutOfMemory("no memory to remove a range of positions");
  }
  DropDrafts();
  for (const HistoryRun& run : old) {
    const HistoryRun dropped = Clip(run, begin, end);
    Release(dropped.cell, dropped.length);
  }
  target.Truncate(begin);
  for (const HistoryRun& run : old) {
    MoveDown(id, Clip(run, end, kEndOfSequence), end - begin, removal);
  }
  return removal;
}

// Claims the cells as a pass would, and takes all back. Without memory for that, each token may be
// in a block of its own.
std::int64_t CellTable::CountNewBlocks(std::span<const SequenceLength> more) const {
  if (free_.touched_blocks() == free_.blocks()) return 0;
  std::vector<std::int32_t> used;
  std::vector<std::int32_t> added;
  std::size_t all = 0;
  for (const SequenceLength& sequence : more) all += static_cast<std::size_t>(sequence.length);
  try {
    used.reserve(all);
    added.reserve(all);
  } catch (const std::bad_alloc&) {
    return std::min(static_cast<std::int64_t>(all), free_.blocks() - free_.touched_blocks());
  }
  for (const auto& [id, tokens] : more) {
    const Position length = history(id).length();
    std::int32_t previous = length > 0 ? history(id).CellOf(length - 1) : RunList::kNoCell;
    for (Position i = 0; i < tokens && free_.count() > 0; ++i) {
      previous = placement_.Place(free_, id, length + i, previous);
      const std::int64_t before = free_.touched_blocks();
      free_.Use(previous);
      used.push_back(previous);
      if (free_.touched_blocks() > before) added.push_back(previous);
    }
  }
  free_.TakeBack(used, added);
  return static_cast<std::int64_t>(added.size());
}

}  // namespace kvcache
