// The wrapper cache's class (kvcache/wrapper_cache.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/snapshot/snapshot_bytes.h"
#include "cache/wrapper/wrapper_snapshot.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/wrapper_cache.h"

namespace kvcache {

class WrapperCache final : public Cache {
 public:
  explicit WrapperCache(WrapperOptions options)
      : caches_(std::move(options.caches)), cache_of_layer_(std::move(options.cache_of_layer)) {
    assert(!caches_.empty());
  }

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status SetConfig(const CacheConfig& config) override {
    return ForAll([&](Cache& cache) { return cache.SetConfig(config); });
  }

  Status PrepareForward(const Batch& batch, ForwardMode mode) override {
    return ForAll([&](Cache& cache) { return cache.PrepareForward(batch, mode); });
  }
  void BeginForward() override {
    for (const auto& cache : caches_) cache->BeginForward();
  }
  void EndPass() override {
    for (const auto& cache : caches_) cache->EndPass();
  }
  void SetLayer(int layer) override;
  Cache& OfLayer(int layer) override;
  void SetLayerType(int type) override {
    chosen_ = type >= 0 && static_cast<std::size_t>(type) < caches_.size() ? type : kNone;
  }
  Status SetCausal(std::span<const std::int32_t> except) override {
    return ForAll([&](Cache& cache) { return cache.SetCausal(except); });
  }

  Status PrepareAccept(std::span<const std::int32_t> last) override;
  void FinishAccept() override {
    for (const auto& cache : caches_) cache->FinishAccept();
  }

  Status Put(const TensorView& k, const TensorView& v) override;
  Result<DenseKv> Get() override;
  Result<LayerKv> Storage() override;
  const Visibility& Visible() const override {
    return chosen_ == kNone ? nothing_ : caches_[chosen_]->Visible();
  }
  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override {
    return std::all_of(caches_.begin(), caches_.end(),
                       [&](const auto& cache) { return cache->CanResume(sequence, position); });
  }
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override;
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override {
    return ForAll([&](const Cache& cache) { return cache.CheckRemove(sequence, begin, end); });
  }
  Status Remove(SequenceId sequence, Position begin, Position end) override;
  Status Compact() override;

  Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                 Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override {
    for (const auto& cache : caches_) cache->FinishRestore();
  }
  bool AbandonRestore() override {
    bool unchanged = true;
    for (const auto& cache : caches_) unchanged = cache->AbandonRestore() && unchanged;
    return unchanged;
  }
  void CancelCaptures(SequenceId sequence) override {
    for (const auto& cache : caches_) cache->CancelCaptures(sequence);
  }
  Status PrepareMerge(Snapshot& parent, Snapshot& child) override;
  Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                   std::unique_ptr<Snapshot>& child) override;
  Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                      Position position) override;
  Status Materialize(Snapshot& snapshot) override;
  Result<std::string> Fingerprint() const override;
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const override;
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) override;
  Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) override;
  void SetMaterializeHook(const MaterializeHook& hook) override {
    for (const auto& cache : caches_) cache->SetMaterializeHook(hook);
  }
  std::int64_t SnapshotBytes() const override { return SumOf(&Cache::SnapshotBytes); }
  std::int64_t SpareBytes() const override { return SumOf(&Cache::SpareBytes); }
  void LimitSpareBytes(std::int64_t most) override {
    for (const auto& cache : caches_) cache->LimitSpareBytes(most);
  }

  Status PrepareTransaction(std::span<const SequenceLength> members, Position max_tokens) override {
    return ForAll([&](Cache& cache) { return cache.PrepareTransaction(members, max_tokens); });
  }
  void BeginTransaction(std::span<const SequenceLength> members, Position max_tokens) override {
    for (const auto& cache : caches_) cache->BeginTransaction(members, max_tokens);
  }
  Status CheckCommit(std::span<const SequenceLength> kept) const override {
    return ForAll([&](const Cache& cache) { return cache.CheckCommit(kept); });
  }
  Status PrepareCommit(std::span<const SequenceLength> kept) override {
    return ForAll([&](Cache& cache) { return cache.PrepareCommit(kept); });
  }
  void FinishCommit(std::span<const SequenceLength> kept) override {
    for (const auto& cache : caches_) cache->FinishCommit(kept);
  }
  void RollBack(std::span<const SequenceLength> members) override {
    for (const auto& cache : caches_) cache->RollBack(members);
  }

  std::int64_t AllocatedBytes() const override { return SumOf(&Cache::AllocatedBytes); }
  std::int64_t UsedBytes() const override { return SumOf(&Cache::UsedBytes); }
  std::int64_t ResidentBytes() const override { return SumOf(&Cache::ResidentBytes); }
  std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                        int rounds) const override {
    std::int64_t sum = 0;
    for (const auto& cache : caches_) sum += cache->GrowthOf(more, captures, rounds);
    return sum;
  }
  Status ReleaseFreeMemory() override {
    return ForAll([](Cache& cache) { return cache.ReleaseFreeMemory(); });
  }
  std::int64_t FreeCells() const override;
  EncoderCache* Encoder() override { return FirstOf(&Cache::Encoder); }
  RecurrentCache* Recurrent() override { return FirstOf(&Cache::Recurrent); }

 private:
  static constexpr int kNone = -1;

  Status CheckChosen() const;

  template <typename Call>
  Status ForAll(const Call& call) const {
    for (const auto& cache : caches_) KVCACHE_RETURN_IF_ERROR(call(*cache));
    return Status::Ok();
  }

  std::int64_t SumOf(std::int64_t (Cache::*bytes)() const) const {
    std::int64_t sum = 0;
    for (const auto& cache : caches_) sum += (*cache.*bytes)();
    return sum;
  }

  template <typename Part>
  Part* FirstOf(Part* (Cache::*part)()) {
    for (const auto& cache : caches_) {
      if (Part* found = (*cache.*part)(); found != nullptr) return found;
    }
    return nullptr;
  }

  Result<const WrapperSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  Result<std::unique_ptr<WrapperSnapshot>> MakeSnapshot(Position begin, Position end) const;
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);

  std::vector<std::unique_ptr<Cache>> caches_;
  std::shared_ptr<const int> identity_ = std::make_shared<const int>(0);  // of its snapshots
  std::vector<int> cache_of_layer_;
  int chosen_ = 0;  // of caches_, or kNone
  Visibility nothing_;
};

}  // namespace kvcache
