#include "cache/snapshot/kind_snapshots.h"

#include "base/errors.h"
#include "cache/cache_checks.h"

namespace kvcache {
namespace {

constexpr const char* kNoDescription = "no memory for the description of a snapshot";

}  // namespace

Status KindSnapshots::CheckOwn(const Snapshot* snapshot) const {
  if (snapshot != nullptr && Owns(*snapshot)) return Status::Ok();
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

Status KindSnapshots::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckOwn(&parent));
  KVCACHE_RETURN_IF_ERROR(CheckOwn(&child));
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  return PrepareJoin(parent, child);
}

Result<SnapshotPtr> KindSnapshots::MergeSnapshots(SnapshotPtr& parent, SnapshotPtr& child) {
  if (parent == nullptr || child == nullptr) return Invalid("the snapshot is null");
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  return Merge(parent, child);
}

Result<SnapshotParts> KindSnapshots::SplitSnapshot(SnapshotPtr& snapshot, Position position) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckOwn(snapshot.get()));
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  return Split(snapshot, position);
}

Status KindSnapshots::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckOwn(&snapshot));
  return MaterializeOwn(snapshot);
}

Result<std::string> KindSnapshots::Fingerprint() const {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  return Guarded(kNoDescription, [&] { return Identity(); });
}

Result<std::string> KindSnapshots::FirstLine() const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string all, Identity());
  return all.substr(0, all.find('\n'));
}

Result<SnapshotHeader> KindSnapshots::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_RETURN_IF_ERROR(CheckOwn(&snapshot));
  SnapshotHeader header;
  header.kind = kind_;
  header.begin = snapshot.begin();
  header.end = snapshot.end();
  KVCACHE_ASSIGN_OR_RETURN(header.fingerprint, FirstLine());
  KVCACHE_RETURN_IF_ERROR(Describe(snapshot, header));
  return header;
}

Result<std::int64_t> KindSnapshots::ExportSize(const Snapshot& snapshot) const {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  return Guarded(kNoDescription, [&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Status KindSnapshots::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  return Guarded(kNoDescription, [&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, BeginExport(header, bytes));
    return CopyOut(snapshot, header, payload);
  });
}

Result<SnapshotPtr> KindSnapshots::Import(std::span<const std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  return Guarded(kNoDescription, [&]() -> Result<SnapshotPtr> {
    KVCACHE_ASSIGN_OR_RETURN(const std::string line, FirstLine());
    KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
    KVCACHE_RETURN_IF_ERROR(CheckOrigin(read.header, kind_, line));
    return CopyIn(read.header, bytes.subspan(static_cast<std::size_t>(read.size)));
  });
}

void KindSnapshots::SetMaterializeHook(const MaterializeHook& hook) {
  for (CacheSnapshots* const inner : inner_) inner->SetMaterializeHook(hook);
  if (host() != nullptr) host()->hook = hook;
}

std::int64_t KindSnapshots::SnapshotBytes() const {
  std::int64_t sum = host() == nullptr ? 0 : host()->bytes;
  for (const CacheSnapshots* const inner : inner_) sum += inner->SnapshotBytes();
  return sum;
}

std::int64_t KindSnapshots::SpareBytes() const {
  std::int64_t sum = host() == nullptr ? 0 : host()->memory.spare_bytes();
  for (const CacheSnapshots* const inner : inner_) sum += inner->SpareBytes();
  return sum;
}

void KindSnapshots::LimitSpareBytes(std::int64_t max_bytes) {
  for (CacheSnapshots* const inner : inner_) inner->LimitSpareBytes(max_bytes);
  if (host() != nullptr) host()->memory.Limit(max_bytes);
}

}  // namespace kvcache
