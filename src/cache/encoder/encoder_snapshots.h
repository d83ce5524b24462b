// An encoder cache's calls for snapshots (kvcache/snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"
#include "cache/snapshot/kind_snapshots.h"

namespace kvcache {

class EncoderCacheImpl;

class EncoderSnapshots final : public KindSnapshots {
 public:
  // All must outlive this.
  EncoderSnapshots(EncoderParts& parts, EncoderPass& pass, EncoderCacheImpl& cache)
      : KindSnapshots(SnapshotKind::kEncoder), parts_(parts), pass_(pass), cache_(cache) {}
  // As in EncoderCache.
  Status CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                     std::span<const KvShape> layers) const;

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
    Position begin = 0;  // the sequence goes back to here first
    Position target = 0;
    bool with_snapshot = false;
    bool reuses = false;     // cells of the sequence: it was dropped
    EncoderOutput output{};  // with an entry that belongs to the restore
  };

  // Returns the sequence's output if it belongs to a token in [begin, end), else one without an entry.
  EncoderOutput OutputIn(SequenceId sequence, Position begin, Position end) const;

  EncoderParts& parts_;
  EncoderPass& pass_;
  EncoderCacheImpl& cache_;
  Restoring restoring_;
};

}  // namespace kvcache
