#include "cache/recurrent/recurrent_transactions.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

using Kept = RecurrentRound::Kept;

Status RecurrentTransactions::PrepareBegin(std::span<const SequenceLength> members,
                                           Position max_tokens) {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.own_transactions().PrepareBegin(members, max_tokens));
  for (const auto& [id, length] : members) {
    const StatePoint& live = parts_.states.live(id);
    if (live.known() && live.tokens > length) {
      return Invalid(StrCat("a transaction of sequence ", Index(id), " from ", length,
                            " tokens on; its recurrent state is after ", live.tokens));
    }
  }
  if (max_tokens > 1 && parts_.has_layers() && !parts_.options.replay_drafts) {
    return Unsupported(
        "a transaction of several tokens in recurrent layers; it needs "
        "RecurrentOptions::replay_drafts");
  }
  const auto passes =
      static_cast<std::size_t>(std::min<Position>(max_tokens, parts_.sizes.max_batch));
  return Guarded("no memory for the passes of a transaction", [&] {
    for (const SequenceLength& member : members) rounds_.Reserve(member.sequence, passes);
  });
}

void RecurrentTransactions::FinishBegin(std::span<const SequenceLength> members,
                                        Position max_tokens) {
  parts_.attention.own_transactions().FinishBegin(members, max_tokens);
  pass_.EndStates();
  for (const auto& [id, length] : members) {
    parts_.states.Save(id);
    parts_.Unprepare(id);
  }
}

Status RecurrentTransactions::CheckCommit(std::span<const SequenceLength> kept) const {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.own_transactions().CheckCommit(kept));
  for (const auto& [id, length] : kept) {
    if (rounds_.Find(id, length).kind != Kept::Kind::kUnknown) continue;
    const Position begin = parts_.attention.open_transactions().begin(id);
    return Unsupported(
        StrCat("Commit of ", length - begin, " tokens of sequence ", Index(id),
               "; its recurrent state is known after whole passes and accepted paths, and within "
               "the last pass unless that broke off or another pass has kept inputs since"));
  }
  return Status::Ok();
}

// The states of members that keep a part of their last pass are computed again, all at once.
Status RecurrentTransactions::PrepareCommit(std::span<const SequenceLength> kept) {
  pass_.End();
  Status status = pass_.Replay(kept);
  if (status.ok()) return status;
  pass_.EndStates();
  return std::move(status).WithContext("computing the recurrent states that remain");
}

void RecurrentTransactions::EndRound(const SequenceLength& member) {
  rounds_.End(member.sequence);
  parts_.Unprepare(member.sequence);
  parts_.captures.Truncate(member.sequence, member.length);
}

// What remains is as if one pass had written it.
void RecurrentTransactions::FinishCommit(std::span<const SequenceLength> kept) {
  parts_.attention.own_transactions().FinishCommit(kept);
  std::size_t replayed = 0;
  for (const SequenceLength& member : kept) {
    const auto& [id, length] = member;
    const RecurrentRound& round = rounds_.of(id);
    const Kept found = rounds_.Find(id, length);
    StatePoint state;
    if (found.kind == Kept::Kind::kPass) {
      state = round.passes[found.index].state;
      parts_.states.Keep(state.cell);
    } else if (found.kind == Kept::Kind::kReplay) {
      state = {pass_.states().after()[replayed++], round.positions[found.tokens - 1] + 1};
    }
    parts_.states.Revert(id);
    if (state.known()) {
      parts_.states.DropBefore(id);
      parts_.states.Commit(id, state.cell, state.tokens);
    }
    EndRound(member);
  }
  pass_.GiveReplayed();
}

void RecurrentTransactions::RollBack(std::span<const SequenceLength> members) {
  if (parts_.pool == nullptr) return;
  pass_.End();
  for (const auto& [id, length] : members) {
    if (!parts_.in_transaction(id)) continue;
    parts_.states.Revert(id);
    EndRound({id, parts_.attention.open_transactions().begin(id)});
  }
  parts_.attention.own_transactions().RollBack(members);
}

}  // namespace kvcache
