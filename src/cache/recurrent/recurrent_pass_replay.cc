// The states that a recurrent cache computes again: of accepted drafts (docs/design/drafts.md), and of the
// tokens that a transaction keeps.
#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/recurrent/recurrent_pass.h"

namespace kvcache {

// The states are computed before anything changes. They go to new cells, which no sequence has until
// FinishAccept. If the pass has not written every layer, the accepted tokens have no states, like
// those of a plain pass that broke off.
Status RecurrentPass::PrepareAccept(std::span<const std::int32_t> last) {
  Status status = parts_.attention.PrepareAccept(last);
  if (status.code() == StatusCode::kInvalidArgument) return status;
  active_ = false;
  parts_.captures.DropPlanned();
  if (status.ok()) status = PlanCaptures(last);
  if (status.ok() && missing_ == 0) status = ReplayAccepted(last);
  if (!status.ok()) {
    End();
    if (status.code() != StatusCode::kInvalidArgument) return status;
    // kInvalidArgument would promise that nothing has changed.
    return {StatusCode::kInternal, "replay_drafts: " + status.message()};
  }
  for (const std::int32_t token : last) {
    accepted_.push_back({batch_.drafts().sequence(token), batch_.drafts().position(token) + 1});
  }
  return status;
}

Status RecurrentPass::PlanCaptures(std::span<const std::int32_t> accepted) {
  Drafts& drafts = batch_.drafts();
  for (std::size_t i = 0; i < accepted.size() && parts_.captures.any(); ++i) {
    path_.clear();
    for (const std::int32_t token : drafts.PathTo(accepted[i])) {
      path_.push_back(drafts.position(token));
    }
    const SequenceId id = drafts.sequence(accepted[i]);
    KVCACHE_RETURN_IF_ERROR(
        parts_.captures.Plan(id, static_cast<std::int32_t>(i), parts_.states.live(id), path_));
  }
  return Status::Ok();
}

Status RecurrentPass::ReplayAccepted(std::span<const std::int32_t> last) {
  if (last.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(CheckCuts());
  const std::size_t cuts = parts_.captures.cuts().size();
  const std::size_t cells = last.size() + cuts;
  KVCACHE_RETURN_IF_ERROR(parts_.pool->EnsureCapacity(static_cast<std::int32_t>(cells), {}));
  const SegmentPlan& plan = batch_.PlanAccepted(last, parts_.captures.cuts());
  states_.Take(parts_.states, last.size(), cuts);
  return Compute(plan, batch_.tokens());
}

Status RecurrentPass::Compute(const SegmentPlan& plan, std::int64_t tokens) {
  for (std::size_t i = 0; i < parts_.options.layers.size(); ++i) {
    const int index = static_cast<int>(i);
    KVCACHE_RETURN_IF_ERROR(parts_.inputs.Ensure(index, tokens));
    DraftReplay replay{.layer = parts_.options.layers[i],
                       .inputs = parts_.inputs.View(index, tokens)};
    if (parts_.conv.values() > 0) {
      KVCACHE_ASSIGN_OR_RETURN(replay.conv, Resolve(index, StateKind::kConvolution, plan));
    }
    if (parts_.state.values() > 0) {
      KVCACHE_ASSIGN_OR_RETURN(replay.recurrent, Resolve(index, StateKind::kRecurrent, plan));
    }
    KVCACHE_RETURN_IF_ERROR(parts_.options.replay_drafts(replay));
  }
  return Status::Ok();
}

void RecurrentPass::FinishAccept() {
  parts_.captures.Begin();
  const std::span<const std::int32_t> after = states_.after();
  for (std::size_t i = 0; i < accepted_.size(); ++i) {
    const auto [sequence, tokens] = accepted_[i];
    const Position first = parts_.length(sequence);
    parts_.Unprepare(sequence);
    parts_.states.DropBefore(sequence);
    if (i < after.size()) {
      parts_.states.Commit(sequence, after[i], tokens);
      rounds_.EndPass(sequence, first, false);
    } else {
      rounds_.BreakOff(sequence, first);
    }
  }
  parts_.attention.FinishAccept();
  if (!after.empty()) parts_.captures.Finish(after, states_.cuts());
  states_.GiveAfter();
  EndStates();
}

Status RecurrentPass::Replay(std::span<const SequenceLength> kept) {
  SegmentPlan& plan = batch_.PlanReplay();
  for (const auto& [id, length] : kept) {
    const RecurrentRound::Kept found = rounds_.Find(id, length);
    if (found.kind != RecurrentRound::Kept::Kind::kReplay) continue;
    const RecurrentRound& round = rounds_.of(id);
    const auto index = static_cast<std::int32_t>(states_.before().size());
    states_.AddBefore(found.index == 0 ? parts_.states.saved(id).live.cell
                                       : round.passes[found.index - 1].state.cell);
    plan.segments.push_back({round.column,
                             found.tokens,
                             {StatePlace::Kind::kBefore, index},
                             {StatePlace::Kind::kAfter, index}});
    plan.EndStrand();
  }
  mode_ = ForwardMode::kCompute;
  const std::size_t count = states_.before().size();
  KVCACHE_RETURN_IF_ERROR(parts_.pool->EnsureCapacity(static_cast<std::int32_t>(count), {}));
  states_.Take(parts_.states, count, parts_.captures.cuts().size());
  return count == 0 ? Status::Ok() : Compute(plan, rounds_.inputs_tokens());
}

void RecurrentPass::GiveReplayed() {
  states_.GiveAfter();
  EndStates();
}

}  // namespace kvcache
