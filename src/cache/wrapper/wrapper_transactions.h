// A wrapper's calls for transactions: those of all its caches, together.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cache/two_phase.h"

namespace kvcache {

class WrapperTransactions final : public TwoPhaseTransactions {
 public:
  // Used only if all caches have these calls.
  explicit WrapperTransactions(const std::vector<std::unique_ptr<Cache>>& caches);

  Status Begin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status CheckCommit(std::span<const SequenceLength> kept) const override;
  Status Commit(std::span<const SequenceLength> kept) override;
  Status PrepareCommit(std::span<const SequenceLength> kept) override;
  void FinishCommit(std::span<const SequenceLength> kept) override;
  void RollBack(std::span<const SequenceLength> members) override;
  bool has_halves() const override { return AllHaveHalves(parts_); }

 private:
  std::vector<TransactionPart> parts_;  // [caches]
};

}  // namespace kvcache
