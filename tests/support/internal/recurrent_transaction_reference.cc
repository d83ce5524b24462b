// The transactions of the recurrent cache's reference model: by definition, the sequence from before,
// and one pass of the tokens that remain.
#include <utility>

#include "support/internal/recurrent_reference.h"

namespace kvcache::testing {

StatusCode RecurrentReference::CheckTransaction(const std::vector<SequenceLength>& members,
                                                Position max_tokens) const {
  const StatusCode code = attention_.CheckTransaction(members, max_tokens);
  if (code != StatusCode::kOk) return code;
  for (const auto& [id, length] : members) {
    const std::optional<Point>& live = sequences_[Index(id)].live;
    if (live.has_value() && live->tokens > length) return StatusCode::kInvalidArgument;
  }
  return max_tokens > 1 && !recurrent_.can_replay ? StatusCode::kUnsupported : StatusCode::kOk;
}

void RecurrentReference::BeginTransaction(const std::vector<SequenceLength>& members,
                                          Position max_tokens) {
  EndPass();
  attention_.BeginTransaction(members, max_tokens);
  for (const auto& [id, length] : members) {
    sequences_[Index(id)].prepared.reset();
    rounds_[Index(id)].saved = sequences_[Index(id)];
  }
}

// The state after the last token that remains must be known: at the end of a pass, or from the inputs
// of the last one.
StatusCode RecurrentReference::CheckCommit(const std::vector<SequenceLength>& kept) const {
  const StatusCode code = attention_.CheckCommit(kept);
  if (code != StatusCode::kOk) return code;
  for (const auto& [id, length] : kept) {
    const Round& round = rounds_.at(Index(id));
    const auto remains = [&, max = length](const TestToken& token) { return token.position < max; };
    for (const TestToken& token : round.torn) {
      if (remains(token)) return StatusCode::kUnsupported;
    }
    for (const Round::Pass& pass : round.passes) {
      std::size_t count = 0;
      for (const TestToken& token : pass.tokens) count += remains(token);
      if (count == 0 || count == pass.tokens.size()) continue;
      const bool last = &pass == &round.passes.back() && round.torn.empty();
      if (!last || pass.inputs != inputs_) return StatusCode::kUnsupported;
    }
  }
  return StatusCode::kOk;
}

void RecurrentReference::Commit(const std::vector<SequenceLength>& kept) {
  EndPass();
  attention_.Commit(kept);
  for (const auto& [id, length] : kept) {
    Round& round = rounds_.at(Index(id));
    Point end;
    for (const Round::Pass& pass : round.passes) {
      for (const TestToken& token : pass.tokens) {
        if (token.position >= length) break;
        const bool whole = &token == &pass.tokens.back();
        end = whole ? pass.end : Point{token.content, token.position + 1, copies_ + 1};
      }
    }
    ++copies_;
    Sequence& sequence = sequences_[Index(id)];
    sequence = std::move(round.saved);
    if (end.tokens > 0) Advance(sequence, end);
    TruncateCaptures(Index(id), length);
    rounds_.erase(Index(id));
  }
}

}  // namespace kvcache::testing
