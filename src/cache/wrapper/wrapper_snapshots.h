// A wrapper's calls for snapshots: a snapshot of it has one of each cache.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/snapshot/kind_snapshots.h"

namespace kvcache {

// One snapshot for each inner cache; null where there was nothing to hold.
class WrapperSnapshot final : public Snapshot {
 public:
  WrapperSnapshot(std::shared_ptr<const int> owner, Position begin, Position end)
      : Snapshot(begin, end), owner_(std::move(owner)) {}
  std::int64_t HeldBytes() const override {
    std::int64_t bytes = 0;
    for (const auto& part : parts) bytes += part == nullptr ? 0 : part->HeldBytes();
    return bytes;
  }
  std::int64_t HeldCells() const override {
    std::int64_t cells = 0;
    for (const auto& part : parts) cells += part == nullptr ? 0 : part->HeldCells();
    return cells;
  }
  const Snapshot* Part(std::size_t i) const override {
    return i < parts.size() ? parts[i].get() : nullptr;
  }
  bool Empty() const {
    return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return !part; });
  }
  // Identifies its wrapper. It is shared, so that no later wrapper has the same address.
  const int* owner() const { return owner_.get(); }

  std::vector<std::unique_ptr<Snapshot>> parts;  // [caches]

 private:
  std::shared_ptr<const int> owner_;
};

class WrapperSnapshots final : public KindSnapshots {
 public:
  // Used only if all caches have these calls.
  explicit WrapperSnapshots(const std::vector<std::unique_ptr<Cache>>& caches);

  Result<SnapshotPtr> TakeSnapshot(SequenceId sequence, Position begin, Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<SnapshotPtr>> TakeCaptures(SequenceId sequence) override;
  void CancelCaptures(SequenceId sequence) override;
  Status Restore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override;
  bool AbandonRestore() override;
  bool has_halves() const override { return AllHaveHalves(parts_); }

 protected:
  bool Owns(const Snapshot& snapshot) const override;
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
  Result<std::unique_ptr<WrapperSnapshot>> MakeSnapshot(Position begin, Position end) const;
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
