// A causal cache's calls for snapshots (kvcache/snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"
#include "cache/causal/causal_sequences.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "cache/two_phase.h"

namespace kvcache {

class CausalSnapshots final : public TwoPhaseSnapshots {
 public:
  // All must outlive this.
  CausalSnapshots(CausalParts& parts, CausalPass& pass, CausalSequences& sequences)
      : parts_(parts), pass_(pass), sequences_(sequences) {}
  // Drops a restore that has begun. REQUIRES: the cells still exist.
  void Clear() { parts_.cells.Unhold(staged_); }

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
    Position begin = 0;  // positions from here on are replaced
    Position target = 0;
    bool with_snapshot = false;
    bool reuses = false;  // cells of the sequence: it was dropped
  };

  std::string Identity() const;  // the first line of the fingerprint
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);
  Result<const CausalSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  // Returns kCacheFull unless there are cells for what the snapshot has in host memory.
  Status CheckCells(SequenceId sequence, const CausalSnapshot& snapshot, Position target) const;
  Status CheckReplace(SequenceId sequence, const CausalSnapshot& snapshot, Position target) const;

  CausalParts& parts_;
  CausalPass& pass_;
  CausalSequences& sequences_;
  Restoring restoring_;
  CellHold staged_;  // what the sequence holds from restoring_.begin on
};

}  // namespace kvcache
