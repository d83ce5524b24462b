// The wrapper cache's calls for snapshots (kvcache/snapshot.h).
#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "cache/cache_checks.h"
#include "cache/wrapper/wrapper_cache_impl.h"

namespace kvcache {

Result<const WrapperSnapshot*> WrapperCache::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const WrapperSnapshot*>(snapshot);
  if (own != nullptr && own->owner() == identity_.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

Result<std::unique_ptr<WrapperSnapshot>> WrapperCache::MakeSnapshot(Position begin,
                                                                    Position end) const {
  try {
    auto snapshot = std::make_unique<WrapperSnapshot>(identity_, begin, end);
    snapshot->parts.resize(caches_.size());
    return snapshot;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for a snapshot");
  }
}

Result<std::unique_ptr<Snapshot>> WrapperCache::TakeSnapshot(SequenceId sequence, Position begin,
                                                             Position end) {
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(begin, end));
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(snapshot->parts[i], caches_[i]->TakeSnapshot(sequence, begin, end));
  }
  if (snapshot->Empty()) return std::unique_ptr<Snapshot>();
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

// After an error half-way, the caches before it take their schedule back.
Status WrapperCache::ScheduleCaptures(SequenceId sequence, Position begin,
                                      std::span<const Position> lengths) {
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    Status status = caches_[i]->ScheduleCaptures(sequence, begin, lengths);
    if (status.ok()) continue;
    while (i-- > 0) caches_[i]->CancelCaptures(sequence);
    return status;
  }
  return Status::Ok();
}

Result<std::vector<std::unique_ptr<Snapshot>>> WrapperCache::TakeCaptures(SequenceId sequence) {
  std::vector<std::unique_ptr<Snapshot>> result;
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(auto parts, caches_[i]->TakeCaptures(sequence));
    try {
      result.resize(std::max(result.size(), parts.size()));
    } catch (const std::bad_alloc&) {
      return Status(StatusCode::kOutOfMemory, "no memory for captures");
    }
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

Status WrapperCache::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                  Position target) const {
  const WrapperSnapshot* own = nullptr;
  if (snapshot != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(own, OwnSnapshot(snapshot));
    if (target > own->end()) {
      return Invalid(StrCat("restoring sequence ", Index(sequence), " to ", target,
                            " tokens; must be in [0, ", own->end(), "]"));
    }
  }
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const Snapshot* const part = own == nullptr ? nullptr : own->parts[i].get();
    if (own != nullptr && part == nullptr && target > own->begin()) {
      return {StatusCode::kUnsupported,
              StrCat("the snapshot [", own->begin(), ", ", own->end(), ") has no state of cache ",
                     i, " after ", own->begin(), " tokens")};
    }
    KVCACHE_RETURN_IF_ERROR(caches_[i]->CheckRestore(sequence, part, target));
  }
  return Status::Ok();
}

// If one cache had to drop the sequence and another one failed, the sequence is dropped in all.
Status WrapperCache::BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  const auto* const own = static_cast<const WrapperSnapshot*>(snapshot);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const Snapshot* const part = own == nullptr ? nullptr : own->parts[i].get();
    Status status = caches_[i]->BeginRestore(sequence, part, target);
    if (status.ok()) continue;
    bool unchanged = true;
    for (std::size_t j = 0; j <= i; ++j) unchanged = caches_[j]->AbandonRestore() && unchanged;
    for (const auto& cache : caches_) {
      if (!unchanged) (void)cache->Remove(sequence, 0, kEndOfSequence).ok();  // never fails
    }
    return status;
  }
  return Status::Ok();
}

Status WrapperCache::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  auto& first = static_cast<WrapperSnapshot&>(parent);
  auto& second = static_cast<WrapperSnapshot&>(child);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (first.parts[i] == nullptr || second.parts[i] == nullptr) continue;
    KVCACHE_RETURN_IF_ERROR(caches_[i]->PrepareMerge(*first.parts[i], *second.parts[i]));
  }
  return Status::Ok();
}

// A later snapshot that covers tokens and has nothing of a cache lacks its state after them, so the
// earlier state is of no use either.
Result<std::unique_ptr<Snapshot>> WrapperCache::MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                               std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  auto& first = static_cast<WrapperSnapshot&>(*parent);
  auto& second = static_cast<WrapperSnapshot&>(*child);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    std::unique_ptr<Snapshot>& part = first.parts[i];
    if (part == nullptr) {
      part = std::move(second.parts[i]);
    } else if (second.parts[i] != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(part, caches_[i]->MergeSnapshots(part, second.parts[i]));
    } else if (second.begin() < second.end()) {
      part.reset();
    }
    if (part != nullptr) part->SetRange(first.begin(), second.end());
  }
  first.SetRange(first.begin(), second.end());
  child.reset();
  return std::move(parent);
}

Result<SnapshotParts> WrapperCache::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                  Position position) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  KVCACHE_ASSIGN_OR_RETURN(auto first, MakeSnapshot(snapshot->begin(), position));
  auto& whole = static_cast<WrapperSnapshot&>(*snapshot);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (whole.parts[i] == nullptr) continue;
    auto parts = caches_[i]->SplitSnapshot(whole.parts[i], position);
    if (parts.ok()) {
      first->parts[i] = std::move(parts->first);
      whole.parts[i] = std::move(parts->second);
      continue;
    }
    for (; i-- > 0;) {  // merging what was one before needs no memory
      if (first->parts[i] == nullptr) continue;
      auto merged = caches_[i]->MergeSnapshots(first->parts[i], whole.parts[i]);
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

Status WrapperCache::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  auto& own = static_cast<WrapperSnapshot&>(snapshot);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (own.parts[i] != nullptr) KVCACHE_RETURN_IF_ERROR(caches_[i]->Materialize(*own.parts[i]));
  }
  return Status::Ok();
}

// The first line of a wrapper's fingerprint names its caches; the others are those of the caches.
Result<std::string> WrapperCache::Fingerprint() const {
  std::string text = StrCat("wrapper of ", caches_.size(), "\n");
  for (const auto& cache : caches_) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string inner, cache->Fingerprint());
    text += inner;
  }
  return text;
}

Result<SnapshotHeader> WrapperCache::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const WrapperSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kWrapper;
  header.begin = own->begin();
  header.end = own->end();
  header.fingerprint = StrCat("wrapper of ", caches_.size());
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    std::int64_t size = 0;
    if (own->parts[i] != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(size, caches_[i]->ExportSize(*own->parts[i]));
    }
    header.parts.push_back(size);
    header.payload += size;
  }
  return header;
}

Result<std::int64_t> WrapperCache::ExportSize(const Snapshot& snapshot) const {
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Status WrapperCache::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(std::span<std::byte> left, BeginExport(header, bytes));
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const auto size = static_cast<std::size_t>(header.parts[i]);
      if (const Snapshot* const part = snapshot.Part(i); part != nullptr) {
        KVCACHE_RETURN_IF_ERROR(caches_[i]->Export(*part, left.first(size)));
      }
      left = left.subspan(size);
    }
    return Status::Ok();
  });
}

Result<std::unique_ptr<Snapshot>> WrapperCache::Import(std::span<const std::byte> bytes) {
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> WrapperCache::ImportChecked(std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
  const SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(
      CheckOrigin(header, SnapshotKind::kWrapper, StrCat("wrapper of ", caches_.size())));
  std::int64_t left = header.payload;
  for (const std::int64_t part : header.parts) left = part < 0 || part > left ? -1 : left - part;
  if (header.parts.size() != caches_.size() || left != 0) {
    return Status(StatusCode::kCorrupt,
                  "snapshot bytes: the sizes of the inner snapshots do not add up");
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(header.begin, header.end));
  auto at = static_cast<std::size_t>(read.size);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const auto size = static_cast<std::size_t>(header.parts[i]);
    if (size > 0) {
      auto part = caches_[i]->Import(bytes.subspan(at, size));
      if (!part.ok()) return Status(part.status()).WithContext(StrCat("inner snapshot ", i));
      if ((*part)->begin() != header.begin || (*part)->end() != header.end) {
        return Status(StatusCode::kCorrupt, "snapshot bytes: the inner ranges differ");
      }
      snapshot->parts[i] = std::move(*part);
    }
    at += size;
  }
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

}  // namespace kvcache
