// A wrapper's calls for snapshots: a snapshot of it has one of each cache (wrapper_snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/snapshot/snapshot_bytes.h"
#include "cache/two_phase.h"
#include "cache/wrapper/wrapper_snapshot.h"

namespace kvcache {

class WrapperSnapshots final : public TwoPhaseSnapshots {
 public:
  // Used only if all caches have these calls.
  explicit WrapperSnapshots(const std::vector<std::unique_ptr<Cache>>& caches);

  Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                 Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) override;
  void CancelCaptures(SequenceId sequence) override;
  Status Restore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override;
  bool AbandonRestore() override;
  Status PrepareMerge(Snapshot& parent, Snapshot& child) override;
  Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                   std::unique_ptr<Snapshot>& child) override;
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
  bool has_halves() const override;

 private:
  Result<const WrapperSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  Result<std::unique_ptr<WrapperSnapshot>> MakeSnapshot(Position begin, Position end) const;
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);
  // Merges the snapshots of cache i into that of `first`.
  Status MergePart(std::size_t i, WrapperSnapshot& first, WrapperSnapshot& second);
  // Takes back the first halves of a restore in the first `begun` caches. If one of them had to drop the
  // sequence, or `emptied`, drops it in all.
  void Abandon(SequenceId sequence, std::size_t begun, bool emptied);

  std::vector<Cache*> caches_;
  std::vector<SnapshotPart> parts_;                                       // [caches]
  std::shared_ptr<const int> identity_ = std::make_shared<const int>(0);  // of its snapshots
};

}  // namespace kvcache
