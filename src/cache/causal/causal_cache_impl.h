// The causal cache's class, for its factory, for kinds that contain one, and for tests that inspect
// it.
//
//   CausalCache ── CausalParts         what the calls share
//               │    ├─ CacheStorage      configuration, and the layers' bytes
//               │    ├─ CellTable         the cells of each sequence
//               │    ├─ WindowEviction    the tokens that a window evicts
//               │    ├─ SnapshotPool      the snapshots, and the cells that they hold
//               │    ├─ Captures          the snapshots that passes take
//               │    └─ OpenTransactions  the sequences in a transaction
//               ├─ CausalPass          the batch in progress, its drafts and its mask
//               └─ CausalSnapshots, CausalMemory, TruncatingTransactions   the capabilities
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cache/causal/causal_memory.h"
#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"
#include "cache/causal/causal_snapshots.h"
#include "cache/truncating_transactions.h"
#include "cache/two_phase.h"

namespace kvcache {

class CausalCache final : public HalvedCache<Cache> {
 public:
  explicit CausalCache(CausalOptions causal)
      : HalvedCache({.snapshots = &snapshots_, .transactions = &transactions_, .memory = &memory_}),
        parts_(std::move(causal)) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status PrepareForward(const Batch& batch, ForwardMode mode) override {
    return pass_.Prepare(batch, mode);
  }
  void BeginForward() override { pass_.Begin(); }
  void EndPass() override { pass_.End(); }
  void SetLayer(int layer) override { parts_.storage.SetLayer(layer); }
  Status SetCausal(std::span<const std::int32_t> except) override {
    return pass_.SetCausal(except);
  }
  Status Put(const TensorView& k, const TensorView& v) override { return pass_.Put(k, v); }
  Result<DenseKv> Get() override { return pass_.Get(); }
  Result<LayerKv> Storage() override { return parts_.storage.Storage(); }
  const Visibility& Visible() const override { return pass_.Visible(); }
  Status PrepareAccept(std::span<const std::int32_t> last) override {
    return pass_.PrepareAccept(last);
  }
  void FinishAccept() override { pass_.FinishAccept(); }

  Position Length(SequenceId id) const override;
  Status FindCells(SequenceId id, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId id, Position position) const override;
  Result<Position> PrepareRestore(SequenceId id, Position target) override;
  Status Remove(SequenceId id, Position begin, Position end) override;
  Status CheckRemove(SequenceId id, Position begin, Position end) const override;
  Status EvictWindow(SequenceId id) override;

  // For snapshots. Drops the tokens from `length` on, and the captures above it.
  void Truncate(SequenceId id, Position length);
  // Replaces the tokens from `begin` on by those of `hold`, and empties it.
  void Replace(SequenceId id, Position begin, CellHold& hold);

  // For TruncatingTransactions. What a window would evict stays until the transaction has ended.
  Status CheckReady() const { return parts_.storage.CheckReady(); }
  Status CheckKnown(SequenceId id) const { return parts_.storage.CheckKnown(id); }
  OpenTransactions& open_transactions() { return parts_.transactions; }
  Position KnownTokens(SequenceId id) const { return parts_.cells.history(id).length(); }
  Status PrepareTransaction(std::span<const SequenceLength> members, Position max_tokens);
  void BeginTransaction();
  void KeepTokens(SequenceId id, Position length);

  // For a cache that contains this one, and for inspection.
  Status CheckInit(const KvBackend& backend, const CacheOptions& options) const {
    return parts_.CheckInit(backend, options);
  }
  const CellTable& cells() const { return parts_.cells; }
  const OpenTransactions& open_transactions() const { return parts_.transactions; }
  CausalSnapshots& own_snapshots() { return snapshots_; }
  TruncatingTransactions<CausalCache>& own_transactions() { return transactions_; }

 private:
  // Returns whether later tokens stay, and move down.
  bool RemovesMiddle(SequenceId id, Position begin, Position end) const;
  Status RemoveMiddle(SequenceId id, Position begin, Position end);

  CausalParts parts_;
  CausalPass pass_{parts_};
  CausalSnapshots snapshots_{parts_, pass_, *this};
  TruncatingTransactions<CausalCache> transactions_{*this};
  CausalMemory memory_{parts_, pass_};
  // [sequences]: the tokens before the first one are gone, although the cache evicts none: a window
  // was restored.
  std::vector<std::uint8_t> starts_late_;
  bool evicts_first_ = false;  // the transaction that was prepared needs cells that a window evicts
};

}  // namespace kvcache
