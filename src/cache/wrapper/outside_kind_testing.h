// A kind outside the library, for tests of composites: it holds a causal cache, makes whole calls only, and
// refuses what the test asks for. It takes batches of drafts and cannot accept them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/causal_cache.h"

namespace kvcache {

// The calls of another cache's snapshots, without their halves.
class WholeSnapshots final : public CacheSnapshots {
 public:
  explicit WholeSnapshots(CacheSnapshots& inner) : inner_(inner) {}

  Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                 Position end) override {
    return inner_.TakeSnapshot(sequence, begin, end);
  }
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override {
    return inner_.ScheduleCaptures(sequence, begin, lengths);
  }
  Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) override {
    return inner_.TakeCaptures(sequence);
  }
  void CancelCaptures(SequenceId sequence) override { inner_.CancelCaptures(sequence); }
  Status Restore(SequenceId sequence, const Snapshot* snapshot, Position target) override {
    if (!refusal.ok()) return refusal;
    return inner_.Restore(sequence, snapshot, target);
  }
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override {
    return inner_.CheckRestore(sequence, snapshot, target);
  }
  Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                   std::unique_ptr<Snapshot>& child) override {
    if (!refusal.ok()) return refusal;
    return inner_.MergeSnapshots(parent, child);
  }
  Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                      Position position) override {
    return inner_.SplitSnapshot(snapshot, position);
  }
  Result<std::string> Fingerprint() const override { return inner_.Fingerprint(); }
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const override {
    return inner_.ExportSize(snapshot);
  }
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) override {
    return inner_.Export(snapshot, bytes);
  }
  Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) override {
    return inner_.Import(bytes);
  }
  Status Materialize(Snapshot& snapshot) override { return inner_.Materialize(snapshot); }
  void SetMaterializeHook(const MaterializeHook& hook) override { inner_.SetMaterializeHook(hook); }
  std::int64_t SnapshotBytes() const override { return inner_.SnapshotBytes(); }
  std::int64_t SpareBytes() const override { return inner_.SpareBytes(); }
  void LimitSpareBytes(std::int64_t max_bytes) override { inner_.LimitSpareBytes(max_bytes); }

  Status refusal;  // of Restore and MergeSnapshots

 private:
  CacheSnapshots& inner_;
};

// The calls of another cache's transactions, without their halves.
class WholeTransactions final : public CacheTransactions {
 public:
  explicit WholeTransactions(CacheTransactions& inner) : inner_(inner) {}

  Status Begin(std::span<const SequenceLength> members, Position max_tokens) override {
    if (!refusal.ok()) return refusal;
    return inner_.Begin(members, max_tokens);
  }
  Status CheckCommit(std::span<const SequenceLength> kept) const override {
    return inner_.CheckCommit(kept);
  }
  Status Commit(std::span<const SequenceLength> kept) override {
    if (!refusal.ok()) return refusal;
    return inner_.Commit(kept);
  }
  void RollBack(std::span<const SequenceLength> members) override { inner_.RollBack(members); }

  Status refusal;  // of Begin and Commit

 private:
  CacheTransactions& inner_;
};

class OutsideKind final : public Cache {
 public:
  OutsideKind() : OutsideKind(MakeCausalCache()) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override {
    return inner_->Init(backend, options);
  }
  void Close() override { inner_->Close(); }
  Status StartForward(const Batch& batch, ForwardMode mode) override {
    if (!refusal.ok()) return refusal;
    return inner_->StartForward(batch, mode);
  }
  void EndPass() override { inner_->EndPass(); }
  void SetLayer(int layer) override { inner_->SetLayer(layer); }
  Status SetCausal(std::span<const std::int32_t> except) override {
    return inner_->SetCausal(except);
  }
  Status Put(const TensorView& k, const TensorView& v) override { return inner_->Put(k, v); }
  Result<DenseKv> Get() override { return inner_->Get(); }
  Result<LayerKv> Storage() override { return inner_->Storage(); }
  const Visibility& Visible() const override { return inner_->Visible(); }
  Position Length(SequenceId sequence) const override { return inner_->Length(sequence); }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override {
    return inner_->CopyPrefix(src, dst, length);
  }
  bool CanResume(SequenceId sequence, Position position) const override {
    return inner_->CanResume(sequence, position);
  }
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override {
    return inner_->PrepareRestore(sequence, target);
  }
  Status Remove(SequenceId sequence, Position begin, Position end) override {
    return inner_->Remove(sequence, begin, end);
  }
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override {
    return inner_->CheckRemove(sequence, begin, end);
  }
  Status EvictWindow(SequenceId sequence) override { return inner_->EvictWindow(sequence); }

  WholeSnapshots& whole_snapshots() { return snapshots_; }
  WholeTransactions& whole_transactions() { return transactions_; }

  Status refusal;  // of StartForward

 private:
  explicit OutsideKind(std::unique_ptr<Cache> inner)
      : Cache(
            {.snapshots = &snapshots_, .transactions = &transactions_, .memory = inner->memory()}),
        inner_(std::move(inner)),
        snapshots_(*inner_->snapshots()),
        transactions_(*inner_->transactions()) {}

  std::unique_ptr<Cache> inner_;
  WholeSnapshots snapshots_;
  WholeTransactions transactions_;
};

}  // namespace kvcache
