#include "cache/recurrent/recurrent_pass.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

void RecurrentPass::Reset(const CacheOptions& options) {
  const int sequences = std::min(options.max_sequences, options.max_batch);
  const std::size_t layers = parts_.options.layers.size();
  batch_.Reset(sequences, options.max_sequences, options.max_batch);
  states_.Reset(sequences, parts_.options.snapshot_states, options.max_batch);
  accepted_.reserve(sequences);
  const int cuts = std::min(options.max_batch, parts_.options.snapshot_states);
  dropped_.reserve(2 * static_cast<std::size_t>(sequences) + static_cast<std::size_t>(cuts));
  path_.reserve(options.max_batch);
  updated_.resize(layers);
  asked_inputs_.resize(layers);
}

void RecurrentPass::Clear() {
  batch_ = {};
  active_ = false;
  states_ = {};
  accepted_ = {};
}

// Checks that the batch continues at the states of its sequences.
Status RecurrentPass::CheckStates() const {
  for (const RecurrentBatch::Member& member : batch_.prepared_members()) {
    const SequenceId id = member.sequence;
    const StatePoint& live = parts_.states.live(id);
    const Position length = parts_.length(id);
    const std::string name = StrCat("sequence ", Index(id));
    if (!live.known()) {
      return Unsupported(StrCat(name, " has no recurrent state for its ", length,
                                " tokens; PrepareRestore and Remove first"));
    }
    if (length > live.tokens) {
      return Unsupported(
          StrCat(name, " holds ", length, " tokens, its recurrent state ", live.tokens,
                 parts_.in_transaction(id)
                     ? "; the pass broke off: commit less or roll the transaction back"
                     : "; Remove the tokens of the pass that broke off"));
    }
    if (member.first < live.tokens) {
      return Unsupported(StrCat(name, " continues at position ", member.first,
                                ", its recurrent state is at ", live.tokens,
                                "; must not be lower"));
    }
  }
  return Status::Ok();
}

Status RecurrentPass::CheckCuts() const {
  const std::size_t cuts = parts_.captures.cuts().size();
  if (cuts <= static_cast<std::size_t>(parts_.options.snapshot_states)) return Status::Ok();
  return CacheFull(
      StrCat(cuts, " captures lie inside the batch; RecurrentOptions::snapshot_states is ",
             parts_.options.snapshot_states, "; divide the batch, or cancel captures"));
}

Status RecurrentPass::PlanCaptures(const Batch& batch) {
  const std::span<const RecurrentBatch::Member> members = batch_.prepared_members();
  std::size_t column = 0;
  for (std::size_t i = 0; i < members.size() && parts_.captures.any(); ++i) {
    const auto tokens = static_cast<std::size_t>(members[i].tokens);
    const SequenceId id = members[i].sequence;
    KVCACHE_RETURN_IF_ERROR(parts_.captures.Plan(id, static_cast<std::int32_t>(i),
                                                 parts_.states.live(id),
                                                 batch.positions.subspan(column, tokens)));
    column += tokens;
  }
  KVCACHE_RETURN_IF_ERROR(CheckCuts());
  batch_.Divide(parts_.captures.cuts());
  return Status::Ok();
}

// Beginning the pass ends the one in progress, and drops the states before the last pass.
Status RecurrentPass::EnsureCapacityForPass() {
  const auto needed =
      static_cast<std::int32_t>(batch_.prepared_sequences().size() + parts_.captures.cuts().size());
  if (parts_.states.free_cells() >= needed) return Status::Ok();
  states_.ListHeld(dropped_);
  for (const SequenceId id : batch_.prepared_sequences()) {
    const StatePoint& before = parts_.states.before(id);
    if (before.known()) dropped_.push_back(before.cell);
  }
  return parts_.pool->EnsureCapacity(needed, dropped_)
      .WithContext("materialising a recurrent state");
}

Status RecurrentPass::CheckMaxStates() {
  const RecurrentOptions& options = parts_.options;
  const int max = options.max_states > 0 ? options.max_states : parts_.sizes.max_sequences;
  const std::int32_t needed = parts_.states.CountStates(batch_.prepared_sequences());
  if (needed <= max) return Status::Ok();
  return CacheFull(StrCat("the batch of ", batch_.prepared_sequences().size(), " sequences needs ",
                          needed, " recurrent states; max_states is ", max));
}

Status RecurrentPass::Prepare(const Batch& batch, ForwardMode mode) {
  parts_.captures.DropPlanned();
  if (!batch.parents.empty() && parts_.has_layers() && !parts_.options.replay_drafts) {
    return Unsupported(
        "a batch of drafts in recurrent layers; it needs RecurrentOptions::replay_drafts");
  }
  KVCACHE_RETURN_IF_ERROR(parts_.attention.PrepareForward(batch, mode));
  KVCACHE_RETURN_IF_ERROR(batch_.Prepare(batch));
  prepared_mode_ = mode;
  prepared_batch_ = batch;
  if (mode == ForwardMode::kReserve) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(CheckStates());
  KVCACHE_RETURN_IF_ERROR(CheckMaxStates());
  KVCACHE_RETURN_IF_ERROR(rounds_.CheckStates(batch_.prepared_sequences()));
  if (!batch.parents.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(PlanCaptures(batch));
  return EnsureCapacityForPass();
}

void RecurrentPass::BeginInputs() {
  std::fill(asked_inputs_.begin(), asked_inputs_.end(), std::uint8_t{0});
  if (reserves()) {
    needs_inputs_ = has_drafts();
    if (needs_inputs_) rounds_.DropInputs();  // the pass may replace them
    return;
  }
  const bool several = rounds_.BeginPass(prepared_batch_, batch_.members());
  needs_inputs_ = !prepared_batch_.parents.empty() || (several && parts_.has_layers());
  if (needs_inputs_) rounds_.KeepInputs(batch_.tokens());
}

// A pass of drafts changes no sequence.
void RecurrentPass::BeginStates() {
  const bool drafts = has_drafts();
  for (const SequenceId id : batch_.sequences()) {
    states_.AddBefore(reserves() ? StateStore::kZeros : parts_.states.live(id).cell);
    if (drafts) continue;
    if (reserves()) {
      states_.AddReserved();
      continue;
    }
    parts_.Unprepare(id);
    parts_.states.DropBefore(id);
  }
  if (drafts || reserves()) return;
  states_.Take(parts_.states, batch_.sequences().size(), parts_.captures.cuts().size());
  parts_.captures.Begin();
  if (missing_ == 0) Commit();
}

void RecurrentPass::Begin() {
  EndStates();
  parts_.attention.BeginForward();
  batch_.Begin();
  mode_ = prepared_mode_;
  std::fill(updated_.begin(), updated_.end(), std::uint8_t{0});
  const int kinds = (parts_.conv.values() > 0 ? 1 : 0) + (parts_.state.values() > 0 ? 1 : 0);
  missing_ = static_cast<std::int32_t>(updated_.size()) * kinds;
  active_ = true;
  BeginInputs();
  BeginStates();
}

void RecurrentPass::Commit() {
  if (reserves()) return;
  const std::span<const std::int32_t> after = states_.after();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const RecurrentBatch::Member& member = batch_.members()[i];
    parts_.states.Commit(member.sequence, after[i], member.last + 1);
    rounds_.EndPass(member.sequence, member.first, HasInputs());
  }
  states_.GiveAfter();
  parts_.captures.Finish(after, states_.cuts());
}

void RecurrentPass::EndStates() {
  states_.Drop(parts_.states);
  parts_.captures.Abandon();
  active_ = false;
  accepted_.clear();
  batch_.End();
}

void RecurrentPass::End() {
  parts_.attention.EndPass();
  parts_.captures.DropPlanned();
  EndStates();
}

bool RecurrentPass::HasInputs() const {
  return !needs_inputs_ ||
         std::find(asked_inputs_.begin(), asked_inputs_.end(), 0) == asked_inputs_.end();
}

Result<StateSegments> RecurrentPass::Resolve(int index, StateKind kind, const SegmentPlan& plan) {
  const auto mode = reserves() ? PassStates::Mode::kReserve : PassStates::Mode::kCompute;
  return states_.Resolve(parts_.StoreOf(kind), index, kind, plan, mode);
}

Result<StateSegments> RecurrentPass::Segments(int layer, StateKind kind) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  if (parts_.StoreOf(kind).values() == 0) return Invalid("the cache has no states of this kind");
  return Resolve(index, kind, batch_.plan());
}

Status RecurrentPass::MarkWritten(int layer, StateKind kind) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  if (parts_.StoreOf(kind).values() == 0) return Invalid("the cache has no states of this kind");
  CountWritten(index, kind);
  return Status::Ok();
}

void RecurrentPass::CountWritten(int index, StateKind kind) {
  const auto bit = static_cast<std::uint8_t>(1 << static_cast<int>(kind));
  if ((updated_[index] & bit) != 0) return;
  updated_[index] |= bit;
  if (--missing_ == 0 && !has_drafts()) Commit();
}

Result<TensorView> RecurrentPass::DraftInputs(int layer) {
  KVCACHE_ASSIGN_OR_RETURN(const int index, IndexOf(layer));
  if (!NeedsInputs()) {
    return Invalid("DraftInputs in a pass without drafts, and of no transaction that needs them");
  }
  KVCACHE_RETURN_IF_ERROR(parts_.inputs.Ensure(index, batch_.tokens()));
  asked_inputs_[index] = 1;
  return parts_.inputs.View(index, batch_.tokens());
}

Result<int> RecurrentPass::IndexOf(int layer) const {
  if (!active_) return Invalid("a recurrent state outside a forward pass; call StartForward first");
  if (layer >= 0 && static_cast<std::size_t>(layer) < parts_.index_of_layer.size() &&
      parts_.index_of_layer[layer] >= 0) {
    return parts_.index_of_layer[layer];
  }
  return Invalid(StrCat("layer ", layer, " is not in RecurrentOptions::layers"));
}

Status RecurrentPass::CheckViews() const {
  if (has_drafts()) {
    return Unsupported("a view of the states in a pass of drafts; use RecurrentCache::Segments");
  }
  if (batch_.divided()) {
    return Unsupported(
        "a view of the states of a batch with a capture inside; use RecurrentCache::Segments");
  }
  if (batch_.tokens_per_sequence() > 0) return Status::Ok();
  return Unsupported(
      "a view of the states of a batch whose sequences have different numbers of tokens; use "
      "RecurrentCache::Segments");
}

}  // namespace kvcache
