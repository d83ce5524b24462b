// The recurrent cache's class, for its factory and for tests that inspect it.
//
//   RecurrentCacheImpl ── RecurrentParts         what the calls share
//                      │    ├─ CausalCache            the attention layers
//                      │    ├─ StateTable             the cell of each state, and the restore points
//                      │    ├─ StateStore × 2         the bytes of convolution and recurrent states
//                      │    ├─ DraftInputStore        what computes states again
//                      │    ├─ RecurrentSnapshotPool  the snapshots, and the cells that they hold
//                      │    └─ RecurrentCaptures      the states that passes take for captures
//                      ├─ RecurrentRounds        the passes of transactions
//                      ├─ RecurrentPass          the batch in progress
//                      │    ├─ RecurrentBatch         its sequences and segments
//                      │    └─ PassStates             the cells that it reads and writes
//                      └─ RecurrentSnapshots, RecurrentTransactions, RecurrentMemory   capabilities
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cache/recurrent/recurrent_memory.h"
#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"
#include "cache/recurrent/recurrent_rounds.h"
#include "cache/recurrent/recurrent_snapshots.h"
#include "cache/recurrent/recurrent_transactions.h"
#include "cache/recurrent/recurrent_views.h"
#include "cache/two_phase.h"

namespace kvcache {

class RecurrentCacheImpl final : public HalvedCache<RecurrentCache> {
 public:
  explicit RecurrentCacheImpl(RecurrentOptions options)
      : HalvedCache({.snapshots = &snapshots_, .transactions = &transactions_, .memory = &memory_}),
        parts_(std::move(options)) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status PrepareForward(const Batch& batch, ForwardMode mode) override {
    return pass_.Prepare(batch, mode);
  }
  void BeginForward() override { pass_.Begin(); }
  void EndPass() override { pass_.End(); }
  void SetLayer(int layer) override { parts_.attention.SetLayer(layer); }
  Status SetCausal(std::span<const std::int32_t> except) override {
    return parts_.attention.SetCausal(except);
  }
  Status Put(const TensorView& k, const TensorView& v) override {
    return parts_.attention.Put(k, v);
  }
  Result<DenseKv> Get() override { return parts_.attention.Get(); }
  Result<LayerKv> Storage() override { return parts_.attention.Storage(); }
  const Visibility& Visible() const override { return parts_.attention.Visible(); }
  Status PrepareAccept(std::span<const std::int32_t> last) override {
    return pass_.PrepareAccept(last);
  }
  void FinishAccept() override { pass_.FinishAccept(); }

  Position Length(SequenceId sequence) const override { return parts_.attention.Length(sequence); }
  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override {
    return parts_.attention.FindCells(sequence, begin, end, runs);
  }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override;
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override;
  Status Remove(SequenceId sequence, Position begin, Position end) override;
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override;
  Status EvictWindow(SequenceId sequence) override;

  Status SetCheckpoints(const CheckpointOptions& checkpoints) override;
  std::span<const SequenceId> Sequences() const override { return pass_.Sequences(); }
  std::int32_t TokensPerSequence() const override { return pass_.TokensPerSequence(); }
  std::span<const std::int32_t> Slots() const override { return pass_.Slots(); }
  Result<StateSegments> Segments(int layer, StateKind kind) override {
    return pass_.Segments(layer, kind);
  }
  Status MarkWritten(int layer, StateKind kind) override { return pass_.MarkWritten(layer, kind); }
  bool NeedsInputs() const override { return pass_.NeedsInputs(); }
  Result<TensorView> DraftInputs(int layer) override { return pass_.DraftInputs(layer); }
  Result<TensorView> ConvState(int layer) override {
    return ReadStates(parts_, pass_, StateKind::kConvolution, layer, conv_dims());
  }
  Result<TensorView> RecurrentState(int layer, std::span<const std::int64_t> dims) override {
    return ReadStates(parts_, pass_, StateKind::kRecurrent, layer, dims);
  }
  Result<TensorView> NextConvState(int layer) override {
    return NextStates(parts_, pass_, StateKind::kConvolution, layer, conv_dims());
  }
  Result<TensorView> NextRecurrentState(int layer, std::span<const std::int64_t> dims) override {
    return NextStates(parts_, pass_, StateKind::kRecurrent, layer, dims);
  }
  Status UpdateConvState(int layer, const TensorView& state) override {
    return UpdateStates(parts_, pass_, StateKind::kConvolution, layer, state);
  }
  Status UpdateRecurrentState(int layer, const TensorView& state) override {
    return UpdateStates(parts_, pass_, StateKind::kRecurrent, layer, state);
  }

  // For inspection. The parts of an open cache.
  struct Inspected {
    RecurrentParts& parts;
    const RecurrentRounds& rounds;
    const RecurrentPass& pass;
  };
  Inspected inspect() { return {parts_, rounds_, pass_}; }

 private:
  // Returns the dims of a convolution state.
  std::array<std::int64_t, 2> conv_dims() const {
    return {parts_.options.conv_dim, parts_.options.conv_channels};
  }
  // Returns whether neither tokens nor state reach beyond `end`.
  bool Truncates(SequenceId sequence, Position end) const;

  RecurrentParts parts_;
  RecurrentRounds rounds_;
  RecurrentPass pass_{parts_, rounds_};
  RecurrentSnapshots snapshots_{parts_, pass_, *this};
  RecurrentTransactions transactions_{parts_, pass_, rounds_};
  RecurrentMemory memory_{parts_, pass_, rounds_};
};

}  // namespace kvcache
