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
//               ├─ CausalSequences     changes of sequences outside of passes
//               └─ CausalSnapshots, CausalTransactions, CausalMemory   the capabilities
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/causal/causal_memory.h"
#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"
#include "cache/causal/causal_sequences.h"
#include "cache/causal/causal_snapshots.h"
#include "cache/causal/causal_transactions.h"
#include "cache/two_phase.h"

namespace kvcache {

class CausalCache final : public Cache, public TwoPhaseCache {
 public:
  explicit CausalCache(CausalOptions causal)
      : Cache({.snapshots = &snapshots_, .transactions = &transactions_, .memory = &memory_}),
        parts_(std::move(causal)) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status StartForward(const Batch& batch, ForwardMode mode) override {
    return StartInHalves(*this, batch, mode);
  }
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
  Status AcceptDrafts(std::span<const std::int32_t> last) override {
    return AcceptInHalves(*this, last);
  }
  Status PrepareAccept(std::span<const std::int32_t> last) override {
    return pass_.PrepareAccept(last);
  }
  void FinishAccept() override { pass_.FinishAccept(); }

  Position Length(SequenceId sequence) const override { return sequences_.Length(sequence); }
  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override {
    return sequences_.FindCells(sequence, begin, end, runs);
  }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override {
    return sequences_.CopyPrefix(src, dst, length);
  }
  bool CanResume(SequenceId sequence, Position position) const override {
    return sequences_.CanResume(sequence, position);
  }
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override {
    return sequences_.PrepareRestore(sequence, target);
  }
  Status Remove(SequenceId sequence, Position begin, Position end) override {
    return sequences_.Remove(sequence, begin, end);
  }
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override {
    return sequences_.CheckRemove(sequence, begin, end);
  }
  Status EvictWindow(SequenceId sequence) override { return sequences_.EvictWindow(sequence); }

  // For a cache that contains this one, and for inspection.
  Status CheckInit(const KvBackend& backend, const CacheOptions& options) const {
    return parts_.CheckInit(backend, options);
  }
  const CellTable& cells() const { return parts_.cells; }
  const OpenTransactions& open_transactions() const { return parts_.transactions; }
  CausalSnapshots& own_snapshots() { return snapshots_; }
  CausalTransactions& own_transactions() { return transactions_; }
  CausalMemory& own_memory() { return memory_; }

 private:
  CausalParts parts_;
  CausalPass pass_{parts_};
  CausalSequences sequences_{parts_, pass_};
  CausalSnapshots snapshots_{parts_, pass_, sequences_};
  CausalTransactions transactions_{parts_, pass_, sequences_};
  CausalMemory memory_{parts_, pass_};
};

}  // namespace kvcache
