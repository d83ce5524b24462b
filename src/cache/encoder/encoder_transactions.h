// An encoder cache's calls for transactions (kvcache/transaction.h). A sequence's output cannot change in
// one, so only its length does.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>

#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"
#include "cache/two_phase.h"

namespace kvcache {

class EncoderCacheImpl;

class EncoderTransactions final : public TwoPhaseTransactions {
 public:
  // All must outlive this.
  EncoderTransactions(EncoderParts& parts, EncoderPass& pass, EncoderCacheImpl& cache)
      : parts_(parts), pass_(pass), cache_(cache) {}

  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status CheckCommit(std::span<const SequenceLength> kept) const override;
  Status PrepareCommit(std::span<const SequenceLength> /*kept*/) override { return Status::Ok(); }
  void FinishCommit(std::span<const SequenceLength> kept) override;
  void RollBack(std::span<const SequenceLength> members) override;

 private:
  EncoderParts& parts_;
  EncoderPass& pass_;
  EncoderCacheImpl& cache_;
};

}  // namespace kvcache
