// The recurrent cache's class, for its factory and for tests that inspect it.
//
//   RecurrentCacheImpl ── CausalCache            the attention layers
//                      ├─ StateTable             the cell of each state, and the restore points
//                      ├─ StateStore × 2         the bytes of convolution and recurrent states
//                      ├─ DraftInputStore        what computes states again: accepted drafts, commits
//                      ├─ RecurrentBatch         the sequences and segments of the pass
//                      ├─ RecurrentSnapshotPool  the snapshots, and the cells that they hold
//                      ├─ RecurrentCaptures      the states that passes take for captures
//                      └─ RecurrentRound         the passes of a transaction
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/causal/causal_cache_impl.h"
#include "cache/pass/draft_inputs.h"
#include "cache/recurrent/recurrent_batch.h"
#include "cache/recurrent/recurrent_captures.h"
#include "cache/recurrent/recurrent_rounds.h"
#include "cache/recurrent/recurrent_snapshot.h"
#include "cache/recurrent/state_store.h"
#include "cache/recurrent/state_table.h"
#include "kvcache/recurrent_cache.h"

namespace kvcache {

class RecurrentCacheImpl final : public RecurrentCache,
                                 public TwoPhaseCache,
                                 public TwoPhaseSnapshots,
                                 public TwoPhaseTransactions,
                                 public CacheMemory {
 public:
  explicit RecurrentCacheImpl(RecurrentOptions options)
      : RecurrentCache({.snapshots = this, .transactions = this, .memory = this}),
        recurrent_(std::move(options)),
        attention_(recurrent_.attention) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status StartForward(const Batch& batch, ForwardMode mode) override {
    return StartInHalves(*this, batch, mode);
  }
  Status PrepareForward(const Batch& batch, ForwardMode mode) override;
  void BeginForward() override;
  void EndPass() override;
  void SetLayer(int layer) override { attention_.SetLayer(layer); }
  Status SetCausal(std::span<const std::int32_t> except) override {
    return attention_.SetCausal(except);
  }
  Status AcceptDrafts(std::span<const std::int32_t> last) override {
    return AcceptInHalves(*this, last);
  }
  Status PrepareAccept(std::span<const std::int32_t> last) override;
  void FinishAccept() override;
  Status Put(const TensorView& k, const TensorView& v) override { return attention_.Put(k, v); }
  Result<DenseKv> Get() override { return attention_.Get(); }
  Result<LayerKv> Storage() override { return attention_.Storage(); }
  const Visibility& Visible() const override { return attention_.Visible(); }
  Position Length(SequenceId sequence) const override { return attention_.Length(sequence); }
  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override {
    return attention_.FindCells(sequence, begin, end, runs);
  }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override;
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override;
  Status Remove(SequenceId sequence, Position begin, Position end) override;
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override;
  Status EvictWindow(SequenceId sequence) override;
  Status Compact() override;

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
  Status Materialize(Snapshot& snapshot) override;
  Result<std::string> Fingerprint() const override;
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const override;
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) override;
  Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) override;
  void SetMaterializeHook(const MaterializeHook& hook) override;
  std::int64_t SnapshotBytes() const override {
    return attention_.SnapshotBytes() + (pool_ == nullptr ? 0 : pool_->bytes());
  }
  std::int64_t SpareBytes() const override {
    return attention_.SpareBytes() + (pool_ == nullptr ? 0 : pool_->memory().spare_bytes());
  }
  void LimitSpareBytes(std::int64_t max_bytes) override;

  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status CheckCommit(std::span<const SequenceLength> kept) const override;
  Status PrepareCommit(std::span<const SequenceLength> kept) override;
  void FinishCommit(std::span<const SequenceLength> kept) override;
  void RollBack(std::span<const SequenceLength> members) override;

  std::int64_t AllocatedBytes() const override {
    return attention_.AllocatedBytes() + conv_.allocated_bytes() + state_.allocated_bytes() +
           inputs_.allocated_bytes();
  }
  std::int64_t UsedBytes() const override {
    return AllocatedBytes() - attention_.AllocatedBytes() + attention_.UsedBytes() +
           SnapshotBytes() - attention_.SnapshotBytes();
  }
  std::int64_t ResidentBytes() const override {
    return attention_.ResidentBytes() + AllocatedBytes() - attention_.AllocatedBytes() +
           SnapshotBytes() - attention_.SnapshotBytes() + SpareBytes() - attention_.SpareBytes();
  }
  std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                        int rounds) const override;
  Status ReleaseFreeMemory() override;
  std::int64_t FreeCells() const override { return attention_.FreeCells(); }

  Status SetCheckpoints(const CheckpointOptions& checkpoints) override;
  std::span<const SequenceId> Sequences() const override { return batch_.sequences(); }
  std::int32_t TokensPerSequence() const override { return batch_.tokens_per_sequence(); }
  std::span<const std::int32_t> Slots() const override { return to_; }
  Result<StateSegments> Segments(int layer, StateKind kind) override;
  Status MarkWritten(int layer, StateKind kind) override;
  bool NeedsInputs() const override { return active_ && needs_inputs_; }
  Result<TensorView> DraftInputs(int layer) override;
  Result<TensorView> ConvState(int layer) override;
  Result<TensorView> RecurrentState(int layer, std::span<const std::int64_t> dims) override;
  Result<TensorView> NextConvState(int layer) override;
  Result<TensorView> NextRecurrentState(int layer, std::span<const std::int64_t> dims) override;
  Status UpdateConvState(int layer, const TensorView& state) override;
  Status UpdateRecurrentState(int layer, const TensorView& state) override;

  // For inspection.
  const StateTable& states() const { return states_; }
  CausalCache& attention() { return attention_; }
  const RecurrentSnapshotPool& pool() const { return *pool_; }
  std::span<const std::int32_t> capture_cells() const { return cuts_; }
  const RecurrentRound& round(SequenceId id) const { return rounds_[Index(id)]; }

 private:
  static constexpr Position kNotPrepared = -1;

  Status CheckRecurrentOptions(const CacheOptions& options) const;
  Status CheckStates() const;
  StateStore& StoreOf(StateKind kind) { return kind == StateKind::kConvolution ? conv_ : state_; }
  // Returns the index of the layer. Errors: kInvalidArgument outside a pass or for another layer.
  Result<int> IndexOf(int layer) const;
  Status CheckViews() const;
  Result<TensorView> Read(StateStore& store, int layer, std::span<const std::int64_t> dims);
  Result<TensorView> Next(StateStore& store, int layer, std::span<const std::int64_t> dims);
  Status Update(StateStore& store, int layer, const TensorView& state);
  void CountWritten(int index, StateKind kind);
  // Returns the segments of the plan with the addresses of their states.
  Result<StateSegments> Resolve(int index, StateKind kind, const SegmentPlan& plan);
  Status PlanCaptures(const Batch& batch);
  Status PlanCaptures(std::span<const std::int32_t> accepted);
  // Returns kCacheFull if more captures lie inside the pass than there are states for them.
  Status CheckCuts() const;
  Status MakeRoomForPass();
  void TakeCells(std::size_t count);
  bool HasDrafts() const { return active_ && !batch_.drafts().empty(); }
  Status ReplayAccepted(std::span<const std::int32_t> last);
  // Computes the states of the plan's segments in all layers, from the inputs of `tokens` tokens.
  Status Replay(const SegmentPlan& plan, std::int64_t tokens);
  Status CheckRoundStates() const;
  void BeginRounds(const Batch& batch);
  // Notes the new state of a sequence after a pass. `inputs`: those of its tokens are kept.
  void EndPassOfRound(SequenceId id, Position first, bool inputs);
  void EndRound(const SequenceLength& member);
  // Returns whether the pass needs no inputs, or has asked for the memory of all of them.
  bool HasInputs() const;
  bool Truncates(SequenceId sequence, Position end) const;
  void Commit();
  void EndStates();
  Result<const RecurrentSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  std::string Identity() const;           // what the fingerprint says before that of the attention
  Result<std::string> FirstLine() const;  // of the fingerprint
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);

  RecurrentOptions recurrent_;
  CausalCache attention_;
  CacheOptions options_;
  StateTable states_;
  StateStore conv_;
  StateStore state_;
  DraftInputStore inputs_;
  RecurrentBatch batch_;
  bool active_ = false;             // in a pass
  std::vector<std::int32_t> from_;  // [sequences of the pass]: cells of the states before it
  // [sequences of the pass]: cells that it writes. In a pass of drafts empty until PrepareAccept,
  // and then [accepted_].
  std::vector<std::int32_t> to_;
  std::vector<std::int32_t> cuts_;  // cells of the states that it captures inside
  struct Accepted {
    SequenceId sequence{};
    Position tokens = 0;  // of the sequence, with its accepted drafts
  };
  std::vector<Accepted> accepted_;
  std::array<std::vector<StateSegment>, 2> segments_;  // results of Segments, by kind
  // [layers]: the kinds of state that were updated in this pass, as bits
  std::vector<std::uint8_t> updated_;
  std::int32_t missing_ = 0;  // updates until the pass is complete
  bool committed_ = false;
  ForwardMode prepared_mode_ = ForwardMode::kCompute;
  ForwardMode mode_ = ForwardMode::kCompute;
  std::vector<Position> prepared_;  // [sequences]: result of PrepareRestore, or kNotPrepared
  std::vector<int> index_of_layer_;

  std::shared_ptr<RecurrentSnapshotPool> pool_;
  RecurrentCaptures captures_;
  std::vector<RecurrentRound> rounds_;      // [sequences]
  std::int32_t round_states_ = 0;           // of all rounds
  Batch prepared_batch_;                    // valid from PrepareForward to BeginForward
  bool needs_inputs_ = false;               // of the pass
  std::vector<std::uint8_t> asked_inputs_;  // [layers]: DraftInputs was called in this pass
  std::int32_t most_round_states_ = 0;
  std::int64_t inputs_number_ = 1;     // of the last pass that kept inputs
  std::int64_t inputs_tokens_ = 0;     // its tokens
  std::vector<std::int32_t> dropped_;  // cells that the next pass gives up, while it is prepared
  std::vector<Position> path_;         // positions of accepted drafts, while captures are planned
  struct Restoring {
    SequenceId sequence{};
    StatePoint state{};  // with a reference to its cell, if there is a snapshot
    Position target = 0;
    Position kept = 0;  // restore points up to here stay, if there is a snapshot
    bool emptied = false;
  };
  Restoring restoring_;
};

}  // namespace kvcache
