// A recurrent cache's calls for transactions (kvcache/transaction.h, recurrent_rounds.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"
#include "cache/recurrent/recurrent_rounds.h"
#include "cache/two_phase.h"

namespace kvcache {

class RecurrentTransactions final : public TwoPhaseTransactions {
 public:
  // All must outlive this.
  RecurrentTransactions(RecurrentParts& parts, RecurrentPass& pass, RecurrentRounds& rounds)
      : parts_(parts), pass_(pass), rounds_(rounds) {}

  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status CheckCommit(std::span<const SequenceLength> kept) const override;
  Status PrepareCommit(std::span<const SequenceLength> kept) override;
  void FinishCommit(std::span<const SequenceLength> kept) override;
  void RollBack(std::span<const SequenceLength> members) override;

 private:
  void EndRound(const SequenceLength& member);

  RecurrentParts& parts_;
  RecurrentPass& pass_;
  RecurrentRounds& rounds_;
};

}  // namespace kvcache
