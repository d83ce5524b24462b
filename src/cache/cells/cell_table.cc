#include "cache/cells/cell_table.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <string>
#include <utility>

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

// Rings that are a power of two apart and grow in step would use the same few cache sets for the
// tables here. An odd number of cache lines between the starts of neighbouring rings prevents that.
constexpr std::int64_t kRingSkew = 5 * 64 / sizeof(std::int32_t);

}  // namespace

void CellTable::Reset(const CellTableOptions& options) {
  ref_counts_.Reset(options.cells);
  free_.Reset(options.cells);
  drafts_.clear();
  drafts_.reserve(options.drafts);
  histories_.assign(options.sequences, RunList());
  for (RunList& history : histories_) {
    if (!history.Reserve(kInitialRuns)) throw std::bad_alloc();
  }
  sequence_stride_ = options.sequence_stride;
  placement_ = options.placement;
  assert(placement_ == Placement::kLinear || options.sequences * sequence_stride_ <= cells());
  lowest_first_ = options.lowest_first && placement_ == Placement::kLinear;
  free_words_.Reset(lowest_first_ ? options.cells / 64 : 0);
  touched_.clear();
  touched_count_ = 0;
  block_ = lowest_first_ ? kCellTile : 64;
  if (options.tracks_blocks) SetBlock(block_);
}

std::int32_t CellTable::PreferredCell(SequenceId id, Position position) const {
  if (placement_ == Placement::kLinear) {
    return static_cast<std::int32_t>((Index(id) * sequence_stride_ + position) % cells());
  }
  const std::int64_t offset = position + std::int64_t{Index(id)} * kRingSkew;
  return RingOf(id) + static_cast<std::int32_t>(offset % sequence_stride_);
}

std::int32_t CellTable::Place(SequenceId id, Position position, std::int32_t previous) const {
  // Past the end of its ring, a sequence would claim its neighbour's cells. So the preferred cell,
  // which wraps around, comes before the cell after the predecessor's.
  if (placement_ == Placement::kRing) {
    const std::int32_t preferred = PreferredCell(id, position);
    if (free_.Contains(preferred)) return preferred;
  }
  if (previous != RunList::kNoCell && previous + 1 < cells() && free_.Contains(previous + 1)) {
    return previous + 1;
  }
  if (lowest_first_) {
    const std::int32_t word = free_words_.NextFrom(0);
    if (word != FreeSet::kNone) return word * 64 + position % kCellTile;
    return free_.NextFrom(0);
  }
  const std::int32_t cell = free_.NextFrom(PreferredCell(id, position));
  return cell != FreeSet::kNone ? cell : free_.NextFrom(0);
}

std::int32_t CellTable::Claim(SequenceId id, Position position) {
  assert(free_cells() > 0);
  const std::int32_t previous = position > 0 ? history(id).CellOf(position - 1) : RunList::kNoCell;
  const std::int32_t cell = Place(id, position, previous);
  Use(cell);
  ref_counts_.Add(cell, 1);
  histories_[Index(id)].Insert(position, cell);
  return cell;
}

// Alternatives share one preferred cell. In a ring, the second one gets the next free cell of the
// ring, wrapping around at its end.
std::int32_t CellTable::PlaceDraft(SequenceId id, Position position, std::int32_t previous) const {
  if (placement_ == Placement::kRing) {
    const std::int32_t preferred = PreferredCell(id, position);
    const std::int64_t end = RingOf(id) + sequence_stride_;
    std::int32_t cell = free_.NextFrom(preferred);
    if (cell != FreeSet::kNone && cell < end) return cell;
    cell = free_.NextFrom(RingOf(id));
    if (cell != FreeSet::kNone && cell < preferred) return cell;
  }
  return Place(id, position, previous);
}

std::int64_t CellTable::Rank(SequenceId id, Position position, std::int32_t cell) const {
  const std::int32_t preferred = PreferredCell(id, position);
  if (placement_ == Placement::kRing) {
    const bool inside = cell >= RingOf(id) && cell < RingOf(id) + sequence_stride_;
    if (inside) return (cell - preferred + sequence_stride_) % sequence_stride_;
    return sequence_stride_ + (std::int64_t{cell} - preferred + cells()) % cells();
  }
  const std::int32_t previous = position > 0 ? history(id).CellOf(position - 1) : RunList::kNoCell;
  const std::int32_t first = previous == RunList::kNoCell ? preferred : previous + 1;
  return (std::int64_t{cell} - first + cells()) % cells();
}

std::int32_t CellTable::ClaimDraft(SequenceId id, Position position, std::int32_t previous) {
  assert(free_cells() > 0 && drafts_.size() < drafts_.capacity());
  const std::int32_t cell = PlaceDraft(id, position, previous);
  Use(cell);
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
    if (ref_counts_[i] == 0) PutBack(i);
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
      const HistoryRun part = Clip(run, 0, begin);
      for (std::int32_t i = part.cell; i < part.cell + part.length; ++i) {
        ref_counts_.Add(i, by);
        unused += ref_counts_[i] == 0;
      }
    }
  }
  return unused;
}

std::int32_t CellTable::AddReferences(std::span<CellHold* const> holds, std::int32_t by) const {
  std::int32_t unused = 0;
  for (const CellHold* hold : holds) {
    for (const HistoryRun& run : hold->runs.runs()) {
      for (std::int32_t i = run.cell; i < run.cell + run.length; ++i) {
        ref_counts_.Add(i, by);
        unused += ref_counts_[i] == 0;
      }
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
  available += AddReferences(holds, -1);
  AddReferences(holds, 1);
  AddReferences(evictions, 1);
  return available;
}

void CellTable::FindFreeing(std::span<const Eviction> evictions,
                            std::span<CellHold* const> holds) const {
  AddReferences(evictions, -1);
  AddReferences(holds, -1);
  for (CellHold* hold : holds) {
    hold->frees = false;
    for (const HistoryRun& run : hold->runs.runs()) {
      for (std::int32_t i = run.cell; i < run.cell + run.length && !hold->frees; ++i) {
        hold->frees = ref_counts_[i] == 0;
      }
    }
  }
  AddReferences(holds, 1);
  AddReferences(evictions, 1);
}

void CellTable::Hold(CellHold& hold) {
  assert(!hold.linked);
  for (const HistoryRun& run : hold.runs.runs()) {
    ref_counts_.AddRange(run.cell, run.cell + run.length, 1);
  }
  Link(hold);
}

void CellTable::Link(CellHold& hold) {
  hold.previous = nullptr;
  hold.next = first_hold_;
  if (first_hold_ != nullptr) first_hold_->previous = &hold;
  first_hold_ = &hold;
  hold.linked = true;
}

void CellTable::Unlink(CellHold& hold) {
  (hold.previous != nullptr ? hold.previous->next : first_hold_) = hold.next;
  if (hold.next != nullptr) hold.next->previous = hold.previous;
  hold.linked = false;
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
  std::int32_t cell = Place(id, position, previous);
  if (previous == RunList::kNoCell || cell != previous + 1) {
    const std::int32_t aligned = cell + ((position - cell) % kCellTile + kCellTile) % kCellTile;
    if (aligned < cells() && free_.Contains(aligned)) cell = aligned;
  }
  Use(cell);
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
  Link(later);
  if (hold.runs.empty()) Unlink(hold);
}

void CellTable::Unhold(CellHold& hold) {
  if (!hold.linked) return;
  for (const HistoryRun& run : hold.runs.runs()) Release(run.cell, run.length);
  hold.runs.Clear();
  Unlink(hold);
}

void CellTable::AbandonHolds() {
  while (first_hold_ != nullptr) {
    CellHold& hold = *first_hold_;
    first_hold_ = hold.next;
    hold.runs.Clear();
    hold.linked = false;
  }
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
  Unlink(hold);
}

void CellTable::MoveHold(CellHold& from, CellHold& to) {
  for (const HistoryRun& run : from.runs.runs()) to.runs.Append(run);
  from.runs.Clear();
  Unlink(from);
}

Status CellTable::Share(SequenceId src, SequenceId dst, Position length) {
  assert(src != dst);
  RunList& target = histories_[Index(dst)];
  if (!target.Reserve(history(src).runs().size())) {
    return {StatusCode::kOutOfMemory, "no memory for the runs of a shared prefix"};
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

std::int64_t CellTable::CountShared(SequenceId id, Position begin) const {
  std::int64_t count = 0;
  for (const HistoryRun& run : history(id).runs()) {
    const HistoryRun part = Clip(run, begin, kEndOfSequence);
    for (std::int32_t i = 0; i < part.length; ++i) count += ref_counts_[part.cell + i] > 1;
  }
  return count;
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
  if (CountShared(id, end) <= cells_without_drafts()) return Status::Ok();
  const std::int32_t free = cells_without_drafts() + AddReferences(holds, -1);
  const std::int64_t needed = CountShared(id, end);
  AddReferences(holds, 1);
  if (needed <= free) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat("removing a middle range copies ", needed, " shared cells; ", free, " of ",
                 cells(), " cells are free")};
}

Result<MiddleRemoval> CellTable::RemoveMiddle(SequenceId id, Position begin, Position end) {
  RunList& target = histories_[Index(id)];
  KVCACHE_RETURN_IF_ERROR(CheckRemoveMiddle(id, end, {}));
  const std::int64_t needed = CountShared(id, end);
  MiddleRemoval removal;
  std::vector<HistoryRun> old;
  try {  // allocate everything first: the rest cannot fail
    old.assign(target.runs().begin(), target.runs().end());
    removal.copies.reserve(needed);
    removal.shifted.reserve(old.size() + 2 * needed);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory to remove a range of positions");
  }
  // Each shared cell may split a run in three.
  if (!target.Reserve(1 + 2 * static_cast<std::size_t>(needed))) {
    return Status(StatusCode::kOutOfMemory, "no memory to remove a range of positions");
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

}  // namespace kvcache
