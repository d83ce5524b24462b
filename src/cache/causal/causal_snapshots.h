// A causal cache's calls for snapshots (kvcache/snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"
#include "cache/snapshot/kind_snapshots.h"

namespace kvcache {

class CausalCache;

class CausalSnapshots final : public KindSnapshots {
 public:
  // All must outlive this.
  CausalSnapshots(CausalParts& parts, CausalPass& pass, CausalCache& cache)
      : KindSnapshots(SnapshotKind::kCausal), parts_(parts), pass_(pass), cache_(cache) {}
  // Drops a restore that has begun. REQUIRES: the cells still exist.
  void Clear() { parts_.cells.Unhold(staged_); }

  Result<SnapshotPtr> TakeSnapshot(SequenceId sequence, Position begin, Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<SnapshotPtr>> TakeCaptures(SequenceId sequence) override;
  void CancelCaptures(SequenceId sequence) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override;
  bool AbandonRestore() override;

 protected:
  Status CheckReady() const override { return parts_.storage.CheckReady(); }
  bool Owns(const Snapshot& snapshot) const override;
  HostBytes* host() const override {
    return parts_.pool == nullptr ? nullptr : &parts_.pool->host();
  }
  Status MaterializeOwn(Snapshot& snapshot) override;
  Status PrepareJoin(Snapshot& parent, Snapshot& child) override;
  Result<SnapshotPtr> Merge(SnapshotPtr& parent, SnapshotPtr& child) override;
  Result<SnapshotParts> Split(SnapshotPtr& snapshot, Position position) override;
  Result<std::string> Identity() const override;
  Status Describe(const Snapshot& snapshot, SnapshotHeader& header) const override;
  Status CopyOut(const Snapshot& snapshot, const SnapshotHeader& header,
                 std::span<std::byte> payload) override;
  Result<SnapshotPtr> CopyIn(const SnapshotHeader& header,
                             std::span<const std::byte> payload) override;

 private:
  // A restore between its halves.
  struct Restoring {
    SequenceId sequence{};
    Position begin = 0;  // positions from here on are replaced
    Position target = 0;
    bool with_snapshot = false;
    bool reuses = false;  // cells of the sequence: it was dropped
  };

  // Returns kCacheFull unless there are cells for what the snapshot has in host memory.
  Status CheckCells(SequenceId sequence, const CausalSnapshot& snapshot, Position target) const;
  Status CheckReplace(SequenceId sequence, const CausalSnapshot& snapshot, Position target) const;

  CausalParts& parts_;
  CausalPass& pass_;
  CausalCache& cache_;
  Restoring restoring_;
  CellHold staged_;  // what the sequence holds from restoring_.begin on
};

}  // namespace kvcache
