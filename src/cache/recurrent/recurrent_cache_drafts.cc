// The acceptance of drafts in the recurrent cache (docs/design/drafts.md).
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "cache/recurrent/recurrent_cache_impl.h"

namespace kvcache {

// The states are computed before anything changes. They go to new cells, which no sequence has until
// FinishAccept. If the pass has not written every layer, the accepted tokens have no states, like
// those of a plain pass that broke off.
Status RecurrentCacheImpl::PrepareAccept(std::span<const std::int32_t> last) {
  Status status = attention_.PrepareAccept(last);
  if (status.code() == StatusCode::kInvalidArgument) return status;
  active_ = false;
  captures_.DropPlanned();
  if (status.ok()) status = PlanCaptures(last);
  if (status.ok() && missing_ == 0) status = ReplayAccepted(last);
  if (!status.ok()) {
    EndPass();
    if (status.code() != StatusCode::kInvalidArgument) return status;
    // kInvalidArgument would promise that nothing has changed.
    return {StatusCode::kInternal, "replay_drafts: " + status.message()};
  }
  for (const std::int32_t token : last) {
    accepted_.push_back({batch_.drafts().sequence(token), batch_.drafts().position(token) + 1});
  }
  return status;
}

Status RecurrentCacheImpl::PlanCaptures(std::span<const std::int32_t> accepted) {
  Drafts& drafts = batch_.drafts();
  for (std::size_t i = 0; i < accepted.size() && captures_.any(); ++i) {
    path_.clear();
    for (const std::int32_t token : drafts.PathTo(accepted[i])) {
      path_.push_back(drafts.position(token));
    }
    const SequenceId id = drafts.sequence(accepted[i]);
    KVCACHE_RETURN_IF_ERROR(
        captures_.Plan(id, static_cast<std::int32_t>(i), states_.live(id), path_));
  }
  return Status::Ok();
}

Status RecurrentCacheImpl::ReplayAccepted(std::span<const std::int32_t> last) {
  if (last.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(CheckCuts());
  const std::size_t cells = last.size() + captures_.cuts().size();
  KVCACHE_RETURN_IF_ERROR(pool_->MakeRoom(static_cast<std::int32_t>(cells), {}));
  const SegmentPlan& plan = batch_.PlanAccepted(last, captures_.cuts());
  TakeCells(last.size());
  return Replay(plan, batch_.tokens());
}

Status RecurrentCacheImpl::Replay(const SegmentPlan& plan, std::int64_t tokens) {
  for (std::size_t i = 0; i < recurrent_.layers.size(); ++i) {
    const int index = static_cast<int>(i);
    KVCACHE_RETURN_IF_ERROR(inputs_.Ensure(index, tokens));
    DraftReplay replay{.layer = recurrent_.layers[i], .inputs = inputs_.View(index, tokens)};
    if (conv_.values() > 0) {
      KVCACHE_ASSIGN_OR_RETURN(replay.conv, Resolve(index, StateKind::kConvolution, plan));
    }
    if (state_.values() > 0) {
      KVCACHE_ASSIGN_OR_RETURN(replay.recurrent, Resolve(index, StateKind::kRecurrent, plan));
    }
    KVCACHE_RETURN_IF_ERROR(recurrent_.replay_drafts(replay));
  }
  return Status::Ok();
}

void RecurrentCacheImpl::FinishAccept() {
  captures_.Begin();
  for (std::size_t i = 0; i < accepted_.size(); ++i) {
    const auto [sequence, tokens] = accepted_[i];
    const Position first = attention_.cells().history(sequence).length();
    prepared_[Index(sequence)] = kNotPrepared;
    states_.DropBefore(sequence);
    if (i < to_.size()) {
      states_.Commit(sequence, to_[i], tokens);
      EndPassOfRound(sequence, first, false);
    } else if (attention_.open_transactions().has(sequence)) {
      rounds_[Index(sequence)].positions.assign(1, first);
      rounds_[Index(sequence)].inputs = 0;
    }
  }
  attention_.FinishAccept();
  if (!to_.empty()) captures_.Finish(to_, cuts_);
  committed_ = true;
  EndStates();
}

}  // namespace kvcache
