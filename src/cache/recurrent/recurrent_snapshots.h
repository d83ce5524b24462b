// A recurrent cache's calls for snapshots (kvcache/snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"
#include "cache/recurrent/recurrent_sequences.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "cache/two_phase.h"

namespace kvcache {

class RecurrentSnapshots final : public TwoPhaseSnapshots {
 public:
  // All must outlive this.
  RecurrentSnapshots(RecurrentParts& parts, RecurrentPass& pass, RecurrentSequences& sequences)
      : parts_(parts), pass_(pass), sequences_(sequences) {}

  Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                 Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) override;
  void CancelCaptures(SequenceId sequence) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override;
  bool AbandonRestore() override;
  Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                   std::unique_ptr<Snapshot>& child) override;
  Status PrepareMerge(Snapshot& parent, Snapshot& child) override;
  Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                      Position position) override;
  Result<std::string> Fingerprint() const override;
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const override;
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) override;
  Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) override;
  Status Materialize(Snapshot& snapshot) override;
  void SetMaterializeHook(const MaterializeHook& hook) override;
  std::int64_t SnapshotBytes() const override;
  std::int64_t SpareBytes() const override;
  void LimitSpareBytes(std::int64_t max_bytes) override;

 private:
  // A restore between its halves.
  struct Restoring {
    SequenceId sequence{};
    StatePoint state{};  // with a reference to its cell, if there is a snapshot
    Position target = 0;
    Position kept = 0;  // restore points up to here stay, if there is a snapshot
    bool emptied = false;
  };

  std::string Identity() const;           // what the fingerprint says before that of the attention
  Result<std::string> FirstLine() const;  // of the fingerprint
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);
  Result<const RecurrentSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  Status CheckWithout(SequenceId sequence, Position target) const;

  RecurrentParts& parts_;
  RecurrentPass& pass_;
  RecurrentSequences& sequences_;
  Restoring restoring_;
};

}  // namespace kvcache
