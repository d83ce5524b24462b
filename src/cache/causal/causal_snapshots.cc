#include "cache/causal/causal_snapshots.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/causal/causal_cache_impl.h"

namespace kvcache {

bool CausalSnapshots::Owns(const Snapshot& snapshot) const {
  const auto* const own = dynamic_cast<const CausalSnapshot*>(&snapshot);
  return own != nullptr && own->pool() == parts_.pool.get();
}

// A window's snapshot is what the token at `end` sees, and one token more, so that a sequence can go
// back over a stop token.
Result<SnapshotPtr> CausalSnapshots::TakeSnapshot(SequenceId sequence, Position begin,
                                                  Position end) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  const RunList& history = parts_.cells.history(sequence);
  KVCACHE_RETURN_IF_ERROR(CheckSnapshotRange(sequence, begin, end, history.length()));
  if (parts_.has_window() && !cache_.CanResume(sequence, end)) {
    return Unsupported(StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                              ", whose first ", history.runs().front().position,
                              " tokens have left the window of ", parts_.options.window,
                              "; schedule a capture before the pass that reaches it"));
  }
  const Position first = parts_.has_window() ? std::max(0, end - parts_.options.window) : begin;
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->Make(begin, end, history.runs().size()));
  parts_.pool->Hold(*snapshot, sequence, first, end);
  if (begin == end && snapshot->first() == end) return SnapshotPtr();
  return SnapshotPtr(std::move(snapshot));
}

Status CausalSnapshots::ScheduleCaptures(SequenceId sequence, Position begin,
                                         std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  pass_.Unprepare();
  return parts_.captures.Schedule(sequence, begin, lengths);
}

Result<std::vector<SnapshotPtr>> CausalSnapshots::TakeCaptures(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  pass_.Unprepare();
  return parts_.captures.Take(sequence);
}

Status CausalSnapshots::CheckCells(SequenceId sequence, const CausalSnapshot& snapshot,
                                   Position target) const {
  const std::int32_t needed = SnapshotPool::CountOwned(snapshot, target);
  if (needed <= parts_.cells.free_cells()) return Status::Ok();
  const Position begin = parts_.has_window() ? 0 : snapshot.begin();
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t available,
                           parts_.pool->CountAvailable(&snapshot, sequence, begin));
  if (available >= needed) return Status::Ok();
  return CacheFull(StrCat("restoring ", needed, " tokens needs as many cells; ", available, " of ",
                          parts_.cells.cells(), " are free (", parts_.sizes_text, ")"));
}

void CausalSnapshots::CancelCaptures(SequenceId sequence) {
  if (parts_.storage.ready() && parts_.cells.Knows(sequence)) parts_.captures.Cancel(sequence);
}

Status CausalSnapshots::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                     Position target) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckChange(sequence));
  if (snapshot != nullptr) KVCACHE_RETURN_IF_ERROR(CheckOwn(snapshot));
  const auto* const own = static_cast<const CausalSnapshot*>(snapshot);
  const Position length = parts_.cells.history(sequence).length();
  KVCACHE_RETURN_IF_ERROR(CheckTarget(sequence, target, own == nullptr ? length : own->end()));
  if (own == nullptr || (!parts_.has_window() && target <= own->begin())) {
    if (cache_.CanResume(sequence, target)) return Status::Ok();
    return Unsupported(StrCat("sequence ", Index(sequence), " has ", length,
                              " tokens and cannot go back to ", target));
  }
  return CheckReplace(sequence, *own, target);
}

// Checks a restore that takes tokens from the snapshot.
Status CausalSnapshots::CheckReplace(SequenceId sequence, const CausalSnapshot& snapshot,
                                     Position target) const {
  KVCACHE_RETURN_IF_ERROR(parts_.pool->CheckShapes(snapshot));
  const Position length = parts_.cells.history(sequence).length();
  if (parts_.has_window()) {
    if (snapshot.first() <= std::max(0, target - parts_.options.window + 1)) {
      return CheckCells(sequence, snapshot, target);
    }
    return Unsupported(StrCat("the snapshot has positions [", snapshot.first(), ", ",
                              snapshot.end(), "), which do not fill a window of ",
                              parts_.options.window, " before ", target));
  }
  if (length >= snapshot.begin()) return CheckCells(sequence, snapshot, target);
  return Unsupported(StrCat("the snapshot begins at ", snapshot.begin(), ", and sequence ",
                            Index(sequence), " has ", length,
                            " tokens; restore what lies between first"));
}

// Claims cells without a change of the sequence if there are enough of them. Otherwise it drops what
// the restore replaces first.
Status CausalSnapshots::BeginRestore(SequenceId sequence, const Snapshot* snapshot,
                                     Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  pass_.Unprepare();
  const bool window = parts_.has_window();
  restoring_ = {.sequence = sequence, .begin = target, .target = target};
  const auto* const own = static_cast<const CausalSnapshot*>(snapshot);
  if (own == nullptr || (!window && target <= own->begin())) return Status::Ok();
  restoring_.begin = window ? 0 : own->begin();
  restoring_.with_snapshot = true;
  const std::int32_t needed = SnapshotPool::CountOwned(*own, target);
  // The drafts of the pass in progress keep their cells, in case that the restore is abandoned.
  const auto drafts = static_cast<std::int32_t>(parts_.cells.drafts().size());
  std::int32_t available = 0;
  Status status =
      needed == 0 ? Status::Ok() : parts_.pool->EnsureCapacity(needed + drafts, {}, own, available);
  if (status.code() == StatusCode::kCacheFull) {
    pass_.End();
    cache_.Truncate(sequence, restoring_.begin);
    restoring_.reuses = true;
    status = parts_.pool->EnsureCapacity(needed, {}, own, available);
  }
  if (status.ok()) status = parts_.pool->Stage(*own, sequence, target, staged_);
  if (status.ok() && !parts_.cells.Reserve(sequence, staged_.runs.runs().size() + 1)) {
    parts_.cells.Unhold(staged_);
    status = OutOfMemory("no memory for the runs of a restored sequence");
  }
  pass_.Rebind();
  if (status.ok()) return status;
  if (restoring_.reuses) parts_.cells.Truncate(sequence, 0);
  return std::move(status).WithContext("restoring a snapshot");
}

void CausalSnapshots::FinishRestore() {
  const auto [sequence, begin, target, with_snapshot, reuses] = std::exchange(restoring_, {});
  pass_.End();
  if (with_snapshot) {
    cache_.Replace(sequence, begin, staged_);
  } else {
    cache_.Truncate(sequence, begin);
  }
}

bool CausalSnapshots::AbandonRestore() {
  parts_.cells.Unhold(staged_);
  return !std::exchange(restoring_, {}).reuses;
}

Status CausalSnapshots::PrepareJoin(Snapshot& parent, Snapshot& child) {
  if (parts_.has_window()) return Status::Ok();
  return SnapshotPool::PrepareJoin(static_cast<CausalSnapshot&>(parent),
                                   static_cast<const CausalSnapshot&>(child));
}

Result<SnapshotPtr> CausalSnapshots::Merge(SnapshotPtr& parent, SnapshotPtr& child) {
  if (parts_.has_window()) {
    child->SetRange(parent->begin(), child->end());
    parent.reset();
    return std::move(child);
  }
  parts_.pool->Join(static_cast<CausalSnapshot&>(*parent), static_cast<CausalSnapshot&>(*child));
  child.reset();
  return std::move(parent);
}

Result<SnapshotParts> CausalSnapshots::Split(SnapshotPtr& snapshot, Position position) {
  SnapshotParts parts;
  if (!parts_.has_window()) {
    KVCACHE_ASSIGN_OR_RETURN(parts.second,
                             parts_.pool->Cut(static_cast<CausalSnapshot&>(*snapshot), position));
    parts.first = std::move(snapshot);
  } else {
    parts.second = std::move(snapshot);
  }
  return parts;
}

Status CausalSnapshots::MaterializeOwn(Snapshot& snapshot) {
  pass_.Unprepare();
  return parts_.pool->Materialize(static_cast<CausalSnapshot&>(snapshot));
}

Result<std::string> CausalSnapshots::Identity() const {
  return IdentityText(
      StrCat("causal, window ", parts_.options.window, ", chunk ", parts_.options.chunk),
      parts_.storage, parts_.options.keys_identity);
}

Status CausalSnapshots::Describe(const Snapshot& snapshot, SnapshotHeader& header) const {
  return parts_.pool->Describe(static_cast<const CausalSnapshot&>(snapshot), header);
}

Status CausalSnapshots::CopyOut(const Snapshot& snapshot, const SnapshotHeader& header,
                                std::span<std::byte> payload) {
  return parts_.pool->CopyOut(static_cast<const CausalSnapshot&>(snapshot), header, payload);
}

Result<SnapshotPtr> CausalSnapshots::CopyIn(const SnapshotHeader& header,
                                            std::span<const std::byte> payload) {
  KVCACHE_RETURN_IF_ERROR(CheckLayers(header.layers, parts_.storage));
  const Position min = parts_.has_window() ? 0 : header.begin;
  if (!header.ranges.empty() &&
      (header.ranges.front().begin < min || header.ranges.back().end > header.end)) {
    return CorruptBytes(StrCat("positions outside of [", min, ", ", header.end, ")"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckPayload(header, SnapshotPool::CellsOf(header)));
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->Make(header.begin, header.end, 0));
  KVCACHE_RETURN_IF_ERROR(parts_.pool->CopyIn(*snapshot, header, payload));
  return SnapshotPtr(std::move(snapshot));
}

}  // namespace kvcache
