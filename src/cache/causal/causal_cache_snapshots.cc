// The causal cache's calls for snapshots (kvcache/snapshot.h).
#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "cache/causal/causal_cache_impl.h"
#include "cache/snapshot/snapshot_bytes.h"

namespace kvcache {

Result<const CausalSnapshot*> CausalCache::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const CausalSnapshot*>(snapshot);
  if (own != nullptr && own->pool() == pool_.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

// A window's snapshot is what the token at `end` sees, and one token more, so that a sequence can go
// back over a stop token.
Result<std::unique_ptr<Snapshot>> CausalCache::TakeSnapshot(SequenceId sequence, Position begin,
                                                            Position end) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  const RunList& history = cells_.history(sequence);
  if (end > history.length()) {
    return Invalid(StrCat("a snapshot of positions [", begin, ", ", end, ") of sequence ",
                          Index(sequence), ", which has ", history.length(), " tokens"));
  }
  if (causal_.window > 0 && !CanResume(sequence, end)) {
    return Status(StatusCode::kUnsupported,
                  StrCat("a snapshot at ", end, " of sequence ", Index(sequence), ", whose first ",
                         history.runs().front().position, " tokens have left the window of ",
                         causal_.window, "; schedule a capture before the pass that reaches it"));
  }
  const Position first = causal_.window > 0 ? std::max(0, end - causal_.window) : begin;
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Make(begin, end, history.runs().size()));
  pool_->Hold(*snapshot, sequence, first, end);
  if (begin == end && snapshot->first() == end) return std::unique_ptr<Snapshot>();
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status CausalCache::ScheduleCaptures(SequenceId sequence, Position begin,
                                     std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  Unprepare();
  return captures_.Schedule(sequence, begin, lengths);
}

Result<std::vector<std::unique_ptr<Snapshot>>> CausalCache::TakeCaptures(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  Unprepare();
  return captures_.Take(sequence);
}

Status CausalCache::CheckRoomFor(SequenceId sequence, const CausalSnapshot& snapshot,
                                 Position target) const {
  const std::int32_t needed = SnapshotPool::CountOwned(snapshot, target);
  if (needed <= cells_.free_cells()) return Status::Ok();
  const Position begin = causal_.window > 0 ? 0 : snapshot.begin();
  KVCACHE_ASSIGN_OR_RETURN(const std::int32_t available,
                           pool_->CountAvailable(&snapshot, sequence, begin));
  if (available >= needed) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat("restoring ", needed, " tokens needs as many cells; ", available, " of ",
                 cells_.cells(), " are free (", sizes_text_, ")")};
}

void CausalCache::CancelCaptures(SequenceId sequence) {
  if (storage_.ready() && cells_.Knows(sequence)) captures_.Cancel(sequence);
}

Status CausalCache::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                 Position target) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(transactions_.CheckChange(sequence));
  const CausalSnapshot* own = nullptr;
  if (snapshot != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(own, OwnSnapshot(snapshot));
  }
  const Position length = cells_.history(sequence).length();
  const Position most = own == nullptr ? length : own->end();
  if (target < 0 || target > most) {
    return Invalid(StrCat("restoring sequence ", Index(sequence), " to ", target,
                          " tokens; must be in [0, ", most, "]"));
  }
  const bool window = causal_.window > 0;
  if (own == nullptr || (!window && target <= own->begin())) {
    if (CanResume(sequence, target)) return Status::Ok();
    return {StatusCode::kUnsupported, StrCat("sequence ", Index(sequence), " has ", length,
                                             " tokens and cannot go back to ", target)};
  }
  KVCACHE_RETURN_IF_ERROR(pool_->CheckShapes(*own));
  if (window) {
    if (own->first() <= std::max(0, target - causal_.window + 1)) {
      return CheckRoomFor(sequence, *own, target);
    }
    return {StatusCode::kUnsupported,
            StrCat("the snapshot has positions [", own->first(), ", ", own->end(),
                   "), which do not fill a window of ", causal_.window, " before ", target)};
  }
  if (length >= own->begin()) return CheckRoomFor(sequence, *own, target);
  return {StatusCode::kUnsupported,
          StrCat("the snapshot begins at ", own->begin(), ", and sequence ", Index(sequence),
                 " has ", length, " tokens; restore what lies between first")};
}

// Claims cells without a change of the sequence if there are enough of them. Otherwise it drops what
// the restore replaces first.
Status CausalCache::BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  Unprepare();
  const bool window = causal_.window > 0;
  restoring_ = {.sequence = sequence, .begin = target, .target = target};
  const auto* const own = static_cast<const CausalSnapshot*>(snapshot);
  if (own == nullptr || (!window && target <= own->begin())) return Status::Ok();
  restoring_.begin = window ? 0 : own->begin();
  restoring_.with_snapshot = true;
  const std::int32_t needed = SnapshotPool::CountOwned(*own, target);
  // The drafts of the pass in progress keep their cells, in case that the restore is abandoned.
  const auto drafts = static_cast<std::int32_t>(cells_.drafts().size());
  std::int32_t available = 0;
  Status status = needed == 0 ? Status::Ok() : pool_->MakeRoom(needed + drafts, {}, own, available);
  if (status.code() == StatusCode::kCacheFull) {
    EndPass();
    Truncate(sequence, restoring_.begin);
    restoring_.reuses = true;
    status = pool_->MakeRoom(needed, {}, own, available);
  }
  if (status.ok()) status = pool_->Stage(*own, sequence, target, staged_);
  if (status.ok() && !cells_.Reserve(sequence, staged_.runs.runs().size() + 1)) {
    cells_.Unhold(staged_);
    status = {StatusCode::kOutOfMemory, "no memory for the runs of a restored sequence"};
  }
  pass_.Rebind(cells_);
  if (status.ok()) return status;
  if (restoring_.reuses) cells_.Truncate(sequence, 0);
  return std::move(status).WithContext("restoring a snapshot");
}

void CausalCache::FinishRestore() {
  const auto [sequence, begin, target, with_snapshot, reuses] = std::exchange(restoring_, {});
  EndPass();
  if (with_snapshot) {
    captures_.Cancel(sequence);
    cells_.Adopt(sequence, begin, staged_);
    eviction_.MarkGrown(sequence);
    const RunList& history = cells_.history(sequence);
    starts_late_[Index(sequence)] =
        causal_.window > 0 && !history.empty() && history.runs().front().position > 0;
  } else {
    Truncate(sequence, begin);
  }
}

bool CausalCache::AbandonRestore() {
  cells_.Unhold(staged_);
  return !std::exchange(restoring_, {}).reuses;
}

Status CausalCache::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  if (causal_.window > 0) return Status::Ok();
  return SnapshotPool::PrepareJoin(static_cast<CausalSnapshot&>(parent),
                                   static_cast<const CausalSnapshot&>(child));
}

Result<std::unique_ptr<Snapshot>> CausalCache::MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                              std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  if (causal_.window > 0) {
    child->SetRange(parent->begin(), child->end());
    parent.reset();
    return std::move(child);
  }
  pool_->Join(static_cast<CausalSnapshot&>(*parent), static_cast<CausalSnapshot&>(*child));
  child.reset();
  return std::move(parent);
}

Result<SnapshotParts> CausalCache::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                 Position position) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  SnapshotParts parts;
  if (causal_.window == 0) {
    KVCACHE_ASSIGN_OR_RETURN(parts.second,
                             pool_->Cut(static_cast<CausalSnapshot&>(*snapshot), position));
    parts.first = std::move(snapshot);
  } else {
    parts.second = std::move(snapshot);
  }
  return parts;
}

Status CausalCache::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  Unprepare();
  return pool_->Materialize(static_cast<CausalSnapshot&>(snapshot));
}

std::string CausalCache::Identity() const {
  return IdentityText(StrCat("causal, window ", causal_.window, ", chunk ", causal_.chunk),
                      storage_, causal_.keys_identity);
}

Result<std::string> CausalCache::Fingerprint() const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc(
      [&]() -> Result<std::string> { return Identity() + "\n" + storage_.layers().ShapesText(); });
}

Result<std::int64_t> CausalCache::ExportSize(const Snapshot& snapshot) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Result<SnapshotHeader> CausalCache::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const CausalSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kCausal;
  header.begin = own->begin();
  header.end = own->end();
  header.fingerprint = Identity();
  KVCACHE_RETURN_IF_ERROR(pool_->Describe(*own, header));
  return header;
}

Status CausalCache::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, BeginExport(header, bytes));
    return pool_->CopyOut(static_cast<const CausalSnapshot&>(snapshot), header, payload);
  });
}

Result<std::unique_ptr<Snapshot>> CausalCache::Import(std::span<const std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> CausalCache::ImportChecked(std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
  const SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(CheckOrigin(header, SnapshotKind::kCausal, Identity()));
  KVCACHE_RETURN_IF_ERROR(CheckLayers(header.layers, storage_));
  const Position least = causal_.window > 0 ? 0 : header.begin;
  if (!header.ranges.empty() &&
      (header.ranges.front().begin < least || header.ranges.back().end > header.end)) {
    return Status(StatusCode::kCorrupt,
                  StrCat("snapshot bytes: positions outside of [", least, ", ", header.end, ")"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckPayload(header, SnapshotPool::CellsOf(header)));
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Make(header.begin, header.end, 0));
  KVCACHE_RETURN_IF_ERROR(pool_->CopyIn(*snapshot, header, bytes.subspan(read.size)));
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

void CausalCache::SetMaterializeHook(const MaterializeHook& hook) {
  if (pool_ != nullptr) pool_->SetHook(hook);
}

}  // namespace kvcache
