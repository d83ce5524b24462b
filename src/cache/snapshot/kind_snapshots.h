// What the calls for snapshots (kvcache/snapshot.h) of all kinds have in common: the checks before a call,
// the description of exported bytes, and host memory. A kind implements the calls below `protected`.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cells/kv_page.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "cache/two_phase.h"

namespace kvcache {

class KindSnapshots : public TwoPhaseSnapshots {
 public:
  Status PrepareMerge(Snapshot& parent, Snapshot& child) final;
  Result<SnapshotPtr> MergeSnapshots(SnapshotPtr& parent, SnapshotPtr& child) final;
  Result<SnapshotParts> SplitSnapshot(SnapshotPtr& snapshot, Position position) final;
  Result<std::string> Fingerprint() const final;
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const final;
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) final;
  Result<SnapshotPtr> Import(std::span<const std::byte> bytes) final;
  Status Materialize(Snapshot& snapshot) final;
  void SetMaterializeHook(const MaterializeHook& hook) final;
  std::int64_t SnapshotBytes() const final;
  std::int64_t SpareBytes() const final;
  void LimitSpareBytes(std::int64_t max_bytes) final;

 protected:
  // `inner`: the snapshots of the caches inside, which must outlive this.
  explicit KindSnapshots(SnapshotKind kind, std::vector<CacheSnapshots*> inner = {})
      : kind_(kind), inner_(std::move(inner)) {}

  // Returns kInvalidArgument if the snapshot is null or not of this cache.
  Status CheckOwn(const Snapshot* snapshot) const;
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;

  // ---- Of the kind. Snapshots that are passed are its own, and ranges fit.

  // Returns the error of a cache that is not open, for a kind whose caches inside do not return it.
  virtual Status CheckReady() const { return Status::Ok(); }
  virtual bool Owns(const Snapshot& snapshot) const = 0;
  // Returns the host memory of its snapshots, besides that of caches inside; null: there is none, or the cache
  // is not open.
  virtual HostBytes* host() const { return nullptr; }
  virtual Status MaterializeOwn(Snapshot& snapshot) = 0;
  // Does all of Merge that can fail.
  virtual Status PrepareJoin(Snapshot& /*parent*/, Snapshot& /*child*/) { return Status::Ok(); }
  virtual Result<SnapshotPtr> Merge(SnapshotPtr& parent, SnapshotPtr& child) = 0;
  virtual Result<SnapshotParts> Split(SnapshotPtr& snapshot, Position position) = 0;
  // These may throw std::bad_alloc. Identity returns the fingerprint. Describe sets what is not the same in
  // all kinds. CopyOut writes every byte of the payload.
  virtual Result<std::string> Identity() const = 0;
  virtual Status Describe(const Snapshot& snapshot, SnapshotHeader& header) const = 0;
  virtual Status CopyOut(const Snapshot& snapshot, const SnapshotHeader& header,
                         std::span<std::byte> payload) = 0;
  virtual Result<SnapshotPtr> CopyIn(const SnapshotHeader& header,
                                     std::span<const std::byte> payload) = 0;

 private:
  Result<std::string> FirstLine() const;  // of the fingerprint

  SnapshotKind kind_;
  std::vector<CacheSnapshots*> inner_;
};

}  // namespace kvcache
