// The pass of a recurrent cache: the batch in progress, the one that is prepared, the states that they
// read and write, and the states that are computed again.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/recurrent/pass_states.h"
#include "cache/recurrent/recurrent_batch.h"
#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_rounds.h"

namespace kvcache {

class RecurrentPass {
 public:
  // Both must outlive the pass.
  RecurrentPass(RecurrentParts& parts, RecurrentRounds& rounds) : parts_(parts), rounds_(rounds) {}
  // May throw std::bad_alloc. REQUIRES: RecurrentParts::CheckInit returned Ok.
  void Reset(const CacheOptions& options);
  void Clear();

  // As in TwoPhaseCache.
  Status Prepare(const Batch& batch, ForwardMode mode);
  void Begin();
  Status PrepareAccept(std::span<const std::int32_t> last);
  void FinishAccept();
  void End();
  // End without that of the attention: the caller ends or changes it.
  void EndStates();

  // As in RecurrentCache.
  std::span<const SequenceId> Sequences() const { return batch_.sequences(); }
  std::int32_t TokensPerSequence() const { return batch_.tokens_per_sequence(); }
  std::span<const std::int32_t> Slots() const { return states_.after(); }
  Result<StateSegments> Segments(int layer, StateKind kind);
  Status MarkWritten(int layer, StateKind kind);
  bool NeedsInputs() const { return active_ && needs_inputs_; }
  Result<TensorView> DraftInputs(int layer);

  // Returns the index of the layer. Errors: kInvalidArgument outside a pass or for another layer.
  Result<int> IndexOf(int layer) const;
  // Returns kUnsupported if the states of the batch have no views.
  Status CheckViews() const;
  // Notes that the pass has written the states of a layer.
  void CountWritten(int index, StateKind kind);
  bool reserves() const { return mode_ == ForwardMode::kReserve; }
  const PassStates& states() const { return states_; }

  // Computes the states that `kept` leaves in the middle of a last pass, all at once. Then states().after()
  // has their cells in the order of `kept`, until GiveReplayed or EndStates. REQUIRES: no pass is in progress.
  Status Replay(std::span<const SequenceLength> kept);
  // The sequences hold the replayed states now.
  void GiveReplayed();

 private:
  // Drafts that are accepted, between the halves.
  struct Accepted {
    SequenceId sequence{};
    Position tokens = 0;  // of the sequence, with its accepted drafts
  };

  bool has_drafts() const { return active_ && !batch_.drafts().empty(); }
  Status CheckStates() const;
  Status CheckMaxStates();
  // Returns kCacheFull if more captures lie inside the pass than there are states for them.
  Status CheckCuts() const;
  Status PlanCaptures(const Batch& batch);
  Status PlanCaptures(std::span<const std::int32_t> accepted);
  Status EnsureCapacityForPass();
  void BeginInputs();
  void BeginStates();
  // Makes the states that the pass wrote those of its sequences.
  void Commit();
  // Returns whether the pass needs no inputs, or has asked for the memory of all of them.
  bool HasInputs() const;
  Status ReplayAccepted(std::span<const std::int32_t> last);
  // Computes the states of the plan's segments in all layers, from the inputs of `tokens` tokens.
  Status Compute(const SegmentPlan& plan, std::int64_t tokens);
  Result<StateSegments> Resolve(int index, StateKind kind, const SegmentPlan& plan);

  RecurrentParts& parts_;
  RecurrentRounds& rounds_;
  RecurrentBatch batch_;
  PassStates states_;
  bool active_ = false;
  ForwardMode mode_ = ForwardMode::kCompute;
  ForwardMode prepared_mode_ = ForwardMode::kCompute;
  Batch prepared_batch_;                    // valid from Prepare to Begin
  bool needs_inputs_ = false;               // of the pass
  std::vector<std::uint8_t> asked_inputs_;  // [layers]: DraftInputs was called in this pass
  // [layers]: the kinds of state that were updated in this pass, as bits
  std::vector<std::uint8_t> updated_;
  std::int32_t missing_ = 0;  // updates until the pass is complete
  std::vector<Accepted> accepted_;
  std::vector<std::int32_t> dropped_;  // cells that the next pass gives up, while it is prepared
  std::vector<Position> path_;         // positions of accepted drafts, while captures are planned
};

}  // namespace kvcache
