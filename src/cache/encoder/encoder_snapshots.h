// An encoder cache's calls for snapshots (kvcache/snapshot.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"
#include "cache/encoder/encoder_sequences.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "cache/two_phase.h"

namespace kvcache {

class EncoderSnapshots final : public TwoPhaseSnapshots {
 public:
  // All must outlive this.
  EncoderSnapshots(EncoderParts& parts, EncoderPass& pass, EncoderSequences& sequences)
      : parts_(parts), pass_(pass), sequences_(sequences) {}
  // As in EncoderCache.
  Status CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                     std::span<const KvShape> layers) const;

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
    Position begin = 0;  // the sequence goes back to here first
    Position target = 0;
    bool with_snapshot = false;
    bool reuses = false;     // cells of the sequence: it was dropped
    EncoderOutput output{};  // with an entry that belongs to the restore
  };

  std::string Identity() const;  // the first line of the fingerprint
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);
  Result<const EncoderSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  // Returns the sequence's output if it belongs to a token in [begin, end), else one without an entry.
  EncoderOutput OutputIn(SequenceId sequence, Position begin, Position end) const;

  EncoderParts& parts_;
  EncoderPass& pass_;
  EncoderSequences& sequences_;
  Restoring restoring_;
};

}  // namespace kvcache
