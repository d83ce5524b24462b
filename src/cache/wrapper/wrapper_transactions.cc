#include "cache/wrapper/wrapper_transactions.h"

namespace kvcache {

WrapperTransactions::WrapperTransactions(const std::vector<std::unique_ptr<Cache>>& caches) {
  for (const auto& cache : caches) parts_.emplace_back(cache->transactions());
}

Status WrapperTransactions::Begin(std::span<const SequenceLength> members, Position max_tokens) {
  return InHalves<TransactionPart>(
      parts_, [&](TwoPhaseTransactions& cache) { return cache.PrepareBegin(members, max_tokens); },
      [&](CacheTransactions& cache) { return cache.Begin(members, max_tokens); },
      [&](TwoPhaseTransactions& cache) { cache.FinishBegin(members, max_tokens); });
}

Status WrapperTransactions::PrepareBegin(std::span<const SequenceLength> members,
                                         Position max_tokens) {
  for (const TransactionPart& part : parts_) {
    KVCACHE_RETURN_IF_ERROR(part.halves->PrepareBegin(members, max_tokens));
  }
  return Status::Ok();
}

void WrapperTransactions::FinishBegin(std::span<const SequenceLength> members,
                                      Position max_tokens) {
  for (const TransactionPart& part : parts_) part.halves->FinishBegin(members, max_tokens);
}

Status WrapperTransactions::CheckCommit(std::span<const SequenceLength> kept) const {
  for (const TransactionPart& part : parts_) {
    KVCACHE_RETURN_IF_ERROR(part.whole->CheckCommit(kept));
  }
  return Status::Ok();
}

Status WrapperTransactions::Commit(std::span<const SequenceLength> kept) {
  return InHalves<TransactionPart>(
      parts_, [&](TwoPhaseTransactions& cache) { return cache.PrepareCommit(kept); },
      [&](CacheTransactions& cache) { return cache.Commit(kept); },
      [&](TwoPhaseTransactions& cache) { cache.FinishCommit(kept); });
}

Status WrapperTransactions::PrepareCommit(std::span<const SequenceLength> kept) {
  for (const TransactionPart& part : parts_) {
    KVCACHE_RETURN_IF_ERROR(part.halves->PrepareCommit(kept));
  }
  return Status::Ok();
}

void WrapperTransactions::FinishCommit(std::span<const SequenceLength> kept) {
  for (const TransactionPart& part : parts_) part.halves->FinishCommit(kept);
}

void WrapperTransactions::RollBack(std::span<const SequenceLength> members) {
  for (const TransactionPart& part : parts_) part.whole->RollBack(members);
}

}  // namespace kvcache
