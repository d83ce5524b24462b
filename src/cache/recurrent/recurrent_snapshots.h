// A recurrent cache's calls for snapshots (kvcache/snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"
#include "cache/snapshot/kind_snapshots.h"

namespace kvcache {

class RecurrentCacheImpl;

class RecurrentSnapshots final : public KindSnapshots {
 public:
  // All must outlive this.
  RecurrentSnapshots(RecurrentParts& parts, RecurrentPass& pass, RecurrentCacheImpl& cache)
      : KindSnapshots(SnapshotKind::kRecurrent, {&parts.attention.own_snapshots()}),
        parts_(parts),
        pass_(pass),
        cache_(cache) {}

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
    StatePoint state{};  // with a reference to its cell, if there is a snapshot
    Position target = 0;
    Position kept = 0;  // restore points up to here stay, if there is a snapshot
    bool emptied = false;
  };

  Status CheckWithout(SequenceId sequence, Position target) const;

  RecurrentParts& parts_;
  RecurrentPass& pass_;
  RecurrentCacheImpl& cache_;
  Restoring restoring_;
};

}  // namespace kvcache
