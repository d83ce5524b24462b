// A causal cache's calls for transactions (kvcache/transaction.h).
//
// A pass never writes to the cells of earlier tokens, so taking it back is a truncation. What a
// window would evict stays until the transaction has ended.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <span>

#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"
#include "cache/two_phase.h"

namespace kvcache {

class CausalCache;

class CausalTransactions final : public TwoPhaseTransactions {
 public:
  // All must outlive this.
  CausalTransactions(CausalParts& parts, CausalPass& pass, CausalCache& cache)
      : parts_(parts), pass_(pass), cache_(cache) {}

  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status CheckCommit(std::span<const SequenceLength> kept) const override;
  Status PrepareCommit(std::span<const SequenceLength> /*kept*/) override { return Status::Ok(); }
  void FinishCommit(std::span<const SequenceLength> kept) override;
  void RollBack(std::span<const SequenceLength> members) override;

 private:
  CausalParts& parts_;
  CausalPass& pass_;
  CausalCache& cache_;
  bool evicts_first_ = false;  // the transaction that was prepared needs cells that a window evicts
};

}  // namespace kvcache
