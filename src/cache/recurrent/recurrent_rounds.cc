#include "cache/recurrent/recurrent_rounds.h"

#include <algorithm>

#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

int RecurrentRounds::MaxStates(const CacheOptions& options) {
  return static_cast<int>(std::min<std::int64_t>(
      std::int64_t{options.max_batch} + 8LL * options.max_sequences, kMaxCells));
}

void RecurrentRounds::Reset(const OpenTransactions& transactions, StateTable& states,
                            const CacheOptions& options) {
  transactions_ = &transactions;
  states_ = &states;
  rounds_.assign(options.max_sequences, {});
  max_round_states_ = MaxStates(options);
}

void RecurrentRounds::Reserve(SequenceId id, std::size_t passes) {
  rounds_[Index(id)].passes.reserve(passes);
  rounds_[Index(id)].positions.reserve(passes);
}

Status RecurrentRounds::CheckStates(std::span<const SequenceId> sequences) const {
  if (!transactions_->any()) return Status::Ok();
  std::int32_t more = 0;
  for (const SequenceId id : sequences) more += transactions_->has(id) ? 1 : 0;
  if (more == 0 || round_states_ + more <= max_round_states_) return Status::Ok();
  return {
      StatusCode::kCacheFull,
      StrCat("the open transactions would keep ", round_states_ + more,
             " recurrent states, one for each pass of a sequence; must be at most max_batch + 8 x "
             "max_sequences, ",
             max_round_states_)};
}

bool RecurrentRounds::BeginPass(const Batch& batch,
                                std::span<const RecurrentBatch::Member> members) {
  if (!transactions_->any() || !batch.parents.empty()) return false;
  bool several = false;
  std::int32_t column = 0;
  for (const RecurrentBatch::Member& member : members) {
    if (transactions_->has(member.sequence)) {
      RecurrentRound& round = rounds_[Index(member.sequence)];
      const auto positions = batch.positions.subspan(column, member.tokens);
      round.positions.assign(positions.begin(), positions.end());
      round.column = column;
      round.inputs = 0;
      several = several || member.tokens > 1;
    }
    column += member.tokens;
  }
  return several;
}

void RecurrentRounds::KeepInputs(std::int64_t tokens) {
  ++inputs_number_;
  inputs_tokens_ = tokens;
}

void RecurrentRounds::EndPass(SequenceId id, Position first, bool inputs) {
  if (!transactions_->has(id)) return;
  RecurrentRound& round = rounds_[Index(id)];
  states_->Keep(states_->live(id).cell);
  round.passes.push_back({states_->live(id), first});
  ++round_states_;
  round.inputs = inputs ? inputs_number_ : 0;
  if (!inputs) round.positions.clear();
}

void RecurrentRounds::BreakOff(SequenceId id, Position first) {
  if (!transactions_->has(id)) return;
  rounds_[Index(id)].positions.assign(1, first);
  rounds_[Index(id)].inputs = 0;
}

void RecurrentRounds::End(SequenceId id) {
  RecurrentRound& round = rounds_[Index(id)];
  for (const RecurrentRound::PassEnd& pass : round.passes) states_->Drop(pass.state.cell);
  round_states_ -= static_cast<std::int32_t>(round.passes.size());
  round.passes.clear();
  round.positions.clear();
  round.inputs = 0;
}

}  // namespace kvcache
