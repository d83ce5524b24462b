#include "cache/wrapper/wrapper_snapshots.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

namespace {

std::vector<CacheSnapshots*> SnapshotsOf(const std::vector<std::unique_ptr<Cache>>& caches) {
  std::vector<CacheSnapshots*> snapshots;
  for (const auto& cache : caches) snapshots.push_back(cache->snapshots());
  return snapshots;
}

}  // namespace

WrapperSnapshots::WrapperSnapshots(const std::vector<std::unique_ptr<Cache>>& caches)
    : KindSnapshots(SnapshotKind::kWrapper, SnapshotsOf(caches)) {
  for (const auto& cache : caches) {
    caches_.push_back(cache.get());
    parts_.emplace_back(cache->snapshots());
  }
}

bool WrapperSnapshots::Owns(const Snapshot& snapshot) const {
  const auto* const own = dynamic_cast<const WrapperSnapshot*>(&snapshot);
  return own != nullptr && own->owner() == identity_.get();
}

Result<std::unique_ptr<WrapperSnapshot>> WrapperSnapshots::MakeSnapshot(Position begin,
                                                                        Position end) const {
  return Guarded("no memory for a snapshot", [&]() -> Result<std::unique_ptr<WrapperSnapshot>> {
    auto snapshot = std::make_unique<WrapperSnapshot>(identity_, begin, end);
    snapshot->parts.resize(parts_.size());
    return snapshot;
  });
}

Result<SnapshotPtr> WrapperSnapshots::TakeSnapshot(SequenceId sequence, Position begin,
                                                   Position end) {
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(begin, end));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(snapshot->parts[i],
                             parts_[i].whole->TakeSnapshot(sequence, begin, end));
  }
  if (snapshot->Empty()) return SnapshotPtr();
  return SnapshotPtr(std::move(snapshot));
}

// After an error half-way, the caches before it take their schedule back.
Status WrapperSnapshots::ScheduleCaptures(SequenceId sequence, Position begin,
                                          std::span<const Position> lengths) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Status status = parts_[i].whole->ScheduleCaptures(sequence, begin, lengths);
    if (status.ok()) continue;
    while (i-- > 0) parts_[i].whole->CancelCaptures(sequence);
    return status;
  }
  return Status::Ok();
}

Result<std::vector<SnapshotPtr>> WrapperSnapshots::TakeCaptures(SequenceId sequence) {
  std::vector<SnapshotPtr> result;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(auto parts, parts_[i].whole->TakeCaptures(sequence));
    KVCACHE_RETURN_IF_ERROR(Guarded("no memory for captures",
                                    [&] { result.resize(std::max(result.size(), parts.size())); }));
    for (std::size_t j = 0; j < parts.size(); ++j) {
      if (parts[j] == nullptr) continue;
      if (result[j] == nullptr) {
        KVCACHE_ASSIGN_OR_RETURN(result[j], MakeSnapshot(parts[j]->begin(), parts[j]->end()));
      }
      static_cast<WrapperSnapshot&>(*result[j]).parts[i] = std::move(parts[j]);
    }
  }
  return result;
}

Status WrapperSnapshots::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) const {
  if (snapshot != nullptr) {
    KVCACHE_RETURN_IF_ERROR(CheckOwn(snapshot));
    KVCACHE_RETURN_IF_ERROR(CheckTarget(sequence, target, snapshot->end()));
  }
  const auto* const own = static_cast<const WrapperSnapshot*>(snapshot);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Snapshot* const part = own == nullptr ? nullptr : own->parts[i].get();
    if (own != nullptr && part == nullptr && target > own->begin()) {
      return Unsupported(StrCat("the snapshot [", own->begin(), ", ", own->end(),
                                ") has no state of cache ", i, " after ", own->begin(), " tokens"));
    }
    KVCACHE_RETURN_IF_ERROR(parts_[i].whole->CheckRestore(sequence, part, target));
  }
  return Status::Ok();
}

// If one cache had to drop the sequence and another one failed, the sequence is dropped in all.
void WrapperSnapshots::Abandon(SequenceId sequence, std::size_t begun, bool emptied) {
  for (std::size_t i = 0; i < begun; ++i) {
    if (parts_[i].halves != nullptr) emptied = !parts_[i].halves->AbandonRestore() || emptied;
  }
  for (Cache* const cache : caches_) {
    if (emptied) (void)cache->Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  }
}

// The cache without halves, if there is one, restores after all others have begun to.
Status WrapperSnapshots::Restore(SequenceId sequence, const Snapshot* snapshot, Position target) {
  KVCACHE_RETURN_IF_ERROR(BeginRestore(sequence, snapshot, target));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].halves != nullptr) continue;
    const Snapshot* const part = snapshot == nullptr ? nullptr : snapshot->Part(i);
    const Position length = caches_[i]->Length(sequence);
    Status status = parts_[i].whole->Restore(sequence, part, target);
    if (status.ok()) continue;
    Abandon(sequence, parts_.size(), caches_[i]->Length(sequence) < length);
    return status;
  }
  FinishRestore();
  return Status::Ok();
}

Status WrapperSnapshots::BeginRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].halves == nullptr) continue;
    const Snapshot* const part = snapshot == nullptr ? nullptr : snapshot->Part(i);
    Status status = parts_[i].halves->BeginRestore(sequence, part, target);
    if (status.ok()) continue;
    Abandon(sequence, i + 1, false);
    return status;
  }
  return Status::Ok();
}

void WrapperSnapshots::FinishRestore() {
  for (const SnapshotPart& part : parts_) {
    if (part.halves != nullptr) part.halves->FinishRestore();
  }
}

bool WrapperSnapshots::AbandonRestore() {
  bool unchanged = true;
  for (const SnapshotPart& part : parts_) unchanged = part.halves->AbandonRestore() && unchanged;
  return unchanged;
}

Status WrapperSnapshots::PrepareJoin(Snapshot& parent, Snapshot& child) {
  auto& first = static_cast<WrapperSnapshot&>(parent);
  auto& second = static_cast<WrapperSnapshot&>(child);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (first.parts[i] == nullptr || second.parts[i] == nullptr) continue;
    if (parts_[i].halves == nullptr) continue;
    KVCACHE_RETURN_IF_ERROR(parts_[i].halves->PrepareMerge(*first.parts[i], *second.parts[i]));
  }
  return Status::Ok();
}

// A later snapshot that covers tokens and has nothing of a cache lacks its state after them, so the
// earlier state is of no use either.
Status WrapperSnapshots::MergePart(std::size_t i, WrapperSnapshot& first, WrapperSnapshot& second) {
  SnapshotPtr& part = first.parts[i];
  if (part == nullptr) {
    part = std::move(second.parts[i]);
  } else if (second.parts[i] != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(part, parts_[i].whole->MergeSnapshots(part, second.parts[i]));
  } else if (second.begin() < second.end()) {
    part.reset();
  }
  if (part != nullptr) part->SetRange(first.begin(), second.end());
  return Status::Ok();
}

Result<SnapshotPtr> WrapperSnapshots::Merge(SnapshotPtr& parent, SnapshotPtr& child) {
  auto& first = static_cast<WrapperSnapshot&>(*parent);
  auto& second = static_cast<WrapperSnapshot&>(*child);
  // The cache without halves may still fail, so it merges first.
  for (const bool has_halves : {false, true}) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if ((parts_[i].halves != nullptr) != has_halves) continue;
      KVCACHE_RETURN_IF_ERROR(MergePart(i, first, second));
    }
  }
  first.SetRange(first.begin(), second.end());
  child.reset();
  return std::move(parent);
}

Result<SnapshotParts> WrapperSnapshots::Split(SnapshotPtr& snapshot, Position position) {
  KVCACHE_ASSIGN_OR_RETURN(auto first, MakeSnapshot(snapshot->begin(), position));
  auto& whole = static_cast<WrapperSnapshot&>(*snapshot);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (whole.parts[i] == nullptr) continue;
    auto parts = parts_[i].whole->SplitSnapshot(whole.parts[i], position);
    if (parts.ok()) {
      first->parts[i] = std::move(parts->first);
      whole.parts[i] = std::move(parts->second);
      continue;
    }
    for (; i-- > 0;) {  // merging what was one before needs no memory
      if (first->parts[i] == nullptr) continue;
      auto merged = parts_[i].whole->MergeSnapshots(first->parts[i], whole.parts[i]);
      if (merged.ok()) whole.parts[i] = std::move(*merged);
    }
    return parts.status();
  }
  SnapshotParts result;
  if (!first->Empty()) {
    for (const auto& part : whole.parts) {
      if (part != nullptr) part->SetRange(position, whole.end());
    }
    whole.SetRange(position, whole.end());
    result.first = std::move(first);
  }
  result.second = std::move(snapshot);
  return result;
}

Status WrapperSnapshots::MaterializeOwn(Snapshot& snapshot) {
  auto& own = static_cast<WrapperSnapshot&>(snapshot);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (own.parts[i] != nullptr)
      KVCACHE_RETURN_IF_ERROR(parts_[i].whole->Materialize(*own.parts[i]));
  }
  return Status::Ok();
}

// The first line of a wrapper's fingerprint names its caches; the others are those of the caches.
Result<std::string> WrapperSnapshots::Identity() const {
  std::string text = StrCat("wrapper of ", parts_.size(), "\n");
  for (const SnapshotPart& part : parts_) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string inner, part.whole->Fingerprint());
    text += inner;
  }
  return text;
}

Status WrapperSnapshots::Describe(const Snapshot& snapshot, SnapshotHeader& header) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::int64_t size = 0;
    if (const Snapshot* const part = snapshot.Part(i); part != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(size, parts_[i].whole->ExportSize(*part));
    }
    header.parts.push_back(size);
    header.payload += size;
  }
  return Status::Ok();
}

Status WrapperSnapshots::CopyOut(const Snapshot& snapshot, const SnapshotHeader& header,
                                 std::span<std::byte> payload) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto size = static_cast<std::size_t>(header.parts[i]);
    if (const Snapshot* const part = snapshot.Part(i); part != nullptr) {
      KVCACHE_RETURN_IF_ERROR(parts_[i].whole->Export(*part, payload.first(size)));
    }
    payload = payload.subspan(size);
  }
  return Status::Ok();
}

Result<SnapshotPtr> WrapperSnapshots::CopyIn(const SnapshotHeader& header,
                                             std::span<const std::byte> payload) {
  std::int64_t left = header.payload;
  for (const std::int64_t part : header.parts) left = part < 0 || part > left ? -1 : left - part;
  if (header.parts.size() != parts_.size() || left != 0) {
    return CorruptBytes("the sizes of the inner snapshots do not add up");
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(header.begin, header.end));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto size = static_cast<std::size_t>(header.parts[i]);
    if (size > 0) {
      auto part = parts_[i].whole->Import(payload.first(size));
      if (!part.ok()) return Status(part.status()).WithContext(StrCat("inner snapshot ", i));
      if ((*part)->begin() != header.begin || (*part)->end() != header.end) {
        return CorruptBytes("the inner ranges differ");
      }
      snapshot->parts[i] = std::move(*part);
    }
    payload = payload.subspan(size);
  }
  return SnapshotPtr(std::move(snapshot));
}

void WrapperSnapshots::CancelCaptures(SequenceId sequence) {
  for (const SnapshotPart& part : parts_) part.whole->CancelCaptures(sequence);
}

}  // namespace kvcache
