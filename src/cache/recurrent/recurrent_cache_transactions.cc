// The recurrent cache's calls for transactions (kvcache/transaction.h, recurrent_rounds.h).
#include <algorithm>
#include <cstdint>
#include <new>
#include <span>
#include <string>

#include "base/strings.h"
#include "cache/recurrent/recurrent_cache_impl.h"

namespace kvcache {

using Kept = RecurrentRound::Kept;

Status RecurrentCacheImpl::PrepareBegin(std::span<const SequenceLength> members,
                                        Position max_tokens) {
  KVCACHE_RETURN_IF_ERROR(attention_.PrepareBegin(members, max_tokens));
  for (const auto& [id, length] : members) {
    const StatePoint& live = states_.live(id);
    if (live.known() && live.tokens > length) {
      return Invalid(StrCat("a transaction of sequence ", Index(id), " from ", length,
                            " tokens on; its recurrent state is after ", live.tokens));
    }
  }
  if (max_tokens > 1 && !recurrent_.layers.empty() && !recurrent_.replay_drafts) {
    return {StatusCode::kUnsupported,
            "a transaction of several tokens in recurrent layers; it needs "
            "RecurrentOptions::replay_drafts"};
  }
  const auto passes = static_cast<std::size_t>(std::min<Position>(max_tokens, options_.max_batch));
  try {
    for (const auto& [id, length] : members) {
      rounds_[Index(id)].passes.reserve(passes);
      rounds_[Index(id)].positions.reserve(passes);
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the passes of a transaction"};
  }
  return Status::Ok();
}

void RecurrentCacheImpl::FinishBegin(std::span<const SequenceLength> members, Position max_tokens) {
  attention_.FinishBegin(members, max_tokens);
  EndStates();
  for (const auto& [id, length] : members) {
    states_.Save(id);
    prepared_[Index(id)] = kNotPrepared;
  }
}

// Every pass adds a state for each of its sequences in a transaction.
Status RecurrentCacheImpl::CheckRoundStates() const {
  if (!attention_.open_transactions().any()) return Status::Ok();
  std::int32_t more = 0;
  for (const SequenceId id : batch_.prepared_sequences()) {
    more += attention_.open_transactions().has(id) ? 1 : 0;
  }
  if (more == 0 || round_states_ + more <= most_round_states_) return Status::Ok();
  return {
      StatusCode::kCacheFull,
      StrCat("the open transactions would keep ", round_states_ + more,
             " recurrent states, one for each pass of a sequence; must be at most max_batch + 8 x "
             "max_sequences, ",
             most_round_states_)};
}

// Notes the tokens of the pass's sequences in a transaction.
void RecurrentCacheImpl::BeginRounds(const Batch& batch) {
  needs_inputs_ = !batch.parents.empty();
  if (attention_.open_transactions().any() && batch.parents.empty()) {
    std::int32_t column = 0;
    for (const RecurrentBatch::Member& member : batch_.members()) {
      if (attention_.open_transactions().has(member.sequence)) {
        RecurrentRound& round = rounds_[Index(member.sequence)];
        const auto positions = batch.positions.subspan(column, member.tokens);
        round.positions.assign(positions.begin(), positions.end());
        round.column = column;
        round.inputs = 0;
        needs_inputs_ = needs_inputs_ || (member.tokens > 1 && !recurrent_.layers.empty());
      }
      column += member.tokens;
    }
  }
  if (needs_inputs_) {
    ++inputs_number_;
    inputs_tokens_ = batch_.tokens();
  }
}

bool RecurrentCacheImpl::HasInputs() const {
  return !needs_inputs_ ||
         std::find(asked_inputs_.begin(), asked_inputs_.end(), 0) == asked_inputs_.end();
}

void RecurrentCacheImpl::EndPassOfRound(SequenceId id, Position first, bool inputs) {
  if (!attention_.open_transactions().has(id)) return;
  RecurrentRound& round = rounds_[Index(id)];
  states_.Keep(states_.live(id).cell);
  round.passes.push_back({states_.live(id), first});
  ++round_states_;
  round.inputs = inputs ? inputs_number_ : 0;
  if (!inputs) round.positions.clear();
}

Status RecurrentCacheImpl::CheckCommit(std::span<const SequenceLength> kept) const {
  KVCACHE_RETURN_IF_ERROR(attention_.CheckCommit(kept));
  for (const auto& [id, length] : kept) {
    if (rounds_[Index(id)].Find(length, inputs_number_).kind != Kept::Kind::kUnknown) continue;
    const Position begin = attention_.open_transactions().begin(id);
    return {
        StatusCode::kUnsupported,
        StrCat("Commit of ", length - begin, " tokens of sequence ", Index(id),
               "; its recurrent state is known after whole passes and accepted paths, and within "
               "the last pass unless that broke off or another pass has kept inputs since")};
  }
  return Status::Ok();
}

// The states of members that keep a part of their last pass are computed again, all at once.
Status RecurrentCacheImpl::PrepareCommit(std::span<const SequenceLength> kept) {
  EndPass();
  SegmentPlan& plan = batch_.PlanReplay();
  for (const auto& [id, length] : kept) {
    const RecurrentRound& round = rounds_[Index(id)];
    const Kept found = round.Find(length, inputs_number_);
    if (found.kind != Kept::Kind::kReplay) continue;
    const auto index = static_cast<std::int32_t>(from_.size());
    from_.push_back(found.index == 0 ? states_.saved(id).live.cell
                                     : round.passes[found.index - 1].state.cell);
    plan.segments.push_back({round.column,
                             found.tokens,
                             {StatePlace::Kind::kBefore, index},
                             {StatePlace::Kind::kAfter, index}});
    plan.EndStrand();
  }
  mode_ = ForwardMode::kCompute;
  Status status = pool_->MakeRoom(static_cast<std::int32_t>(from_.size()), {});
  if (status.ok()) {
    TakeCells(from_.size());
    committed_ = false;  // EndStates releases the cells
    status = from_.empty() ? Status::Ok() : Replay(plan, inputs_tokens_);
  }
  if (status.ok()) return status;
  EndStates();
  return std::move(status).WithContext("computing the recurrent states that remain");
}

void RecurrentCacheImpl::EndRound(const SequenceLength& member) {
  const auto& [id, length] = member;
  RecurrentRound& round = rounds_[Index(id)];
  for (const RecurrentRound::PassEnd& pass : round.passes) states_.Drop(pass.state.cell);
  round_states_ -= static_cast<std::int32_t>(round.passes.size());
  round.passes.clear();
  round.positions.clear();
  round.inputs = 0;
  prepared_[Index(id)] = kNotPrepared;
  captures_.Truncate(id, length);
}

// What remains is as if one pass had written it.
void RecurrentCacheImpl::FinishCommit(std::span<const SequenceLength> kept) {
  attention_.FinishCommit(kept);
  std::size_t replayed = 0;
  for (const SequenceLength& member : kept) {
    const auto& [id, length] = member;
    const RecurrentRound& round = rounds_[Index(id)];
    const Kept found = round.Find(length, inputs_number_);
    StatePoint state;
    if (found.kind == Kept::Kind::kPass) {
      state = round.passes[found.index].state;
      states_.Keep(state.cell);
    } else if (found.kind == Kept::Kind::kReplay) {
      state = {to_[replayed++], round.positions[found.tokens - 1] + 1};
    }
    states_.Revert(id);
    if (state.known()) {
      states_.DropBefore(id);
      states_.Commit(id, state.cell, state.tokens);
    }
    EndRound(member);
  }
  committed_ = true;
  EndStates();
}

void RecurrentCacheImpl::RollBack(std::span<const SequenceLength> members) {
  if (pool_ == nullptr) return;
  EndPass();
  for (const auto& [id, length] : members) {
    if (!attention_.open_transactions().has(id)) continue;
    states_.Revert(id);
    EndRound({id, attention_.open_transactions().begin(id)});
  }
  attention_.RollBack(members);
}

}  // namespace kvcache
