#include "kvcache/transaction.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/cache_checks.h"
#include "cache/two_phase.h"

namespace kvcache {
namespace {

Status CheckCaches(std::span<Cache* const> caches) {
  std::size_t without_halves = 0;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (caches[i] == nullptr) return Invalid(StrCat("cache ", i, " of the transaction is null"));
    if (std::find(caches.begin(), caches.begin() + i, caches[i]) != caches.begin() + i) {
      return Invalid(StrCat("cache ", i, " of the transaction is named twice"));
    }
  }
  for (Cache* const cache : caches) {
    CacheTransactions* const transactions = cache->transactions();
    if (transactions == nullptr) {
      return Unsupported("this kind of cache has no transactions");
    }
    without_halves += TransactionPart(transactions).halves == nullptr ? 1 : 0;
  }
  if (without_halves <= 1) return Status::Ok();
  return {
      StatusCode::kUnsupported,
      StrCat(without_halves,
             " caches of the transaction are of kinds outside the library; must be ", "at most 1")};
}

}  // namespace

Transaction::Transaction(Transaction&& other) noexcept {
  *this = std::move(other);
}

Transaction& Transaction::operator=(Transaction&& other) noexcept {
  if (this == &other) return *this;
  RollBack();
  caches_ = std::exchange(other.caches_, {});
  members_ = std::exchange(other.members_, {});
  kept_ = std::exchange(other.kept_, {});
  isolated_ = other.isolated_;
  return *this;
}

Result<Transaction> Transaction::Begin(std::span<Cache* const> caches,
                                       std::span<const SequenceLength> members,
                                       const TransactionOptions& options) {
  if (caches.empty()) return Invalid("a transaction without a cache");
  if (options.max_tokens < 1) {
    return Invalid(StrCat("max_tokens is ", options.max_tokens, "; must be at least 1"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckCaches(caches));
  Transaction transaction;
  transaction.isolated_ = options.isolated;
  std::vector<CacheTransactions*> all;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a transaction", [&] {
    all.reserve(caches.size());
    for (Cache* const cache : caches) all.push_back(cache->transactions());
    transaction.members_.assign(members.begin(), members.end());
    transaction.kept_.assign(members.begin(), members.end());
  }));
  const Position max_tokens = options.max_tokens;
  KVCACHE_RETURN_IF_ERROR(InHalves<TransactionPart>(
      all, [&](TwoPhaseTransactions& cache) { return cache.PrepareBegin(members, max_tokens); },
      [&](CacheTransactions& cache) { return cache.Begin(members, max_tokens); },
      [&](TwoPhaseTransactions& cache) { cache.FinishBegin(members, max_tokens); }));
  transaction.caches_ = std::move(all);
  return transaction;
}

Status Transaction::Commit(std::span<const Position> tokens) {
  if (!open()) return Invalid("Commit of a transaction that has ended");
  if (isolated_) return Invalid("Commit of an isolated transaction, which can only be rolled back");
  if (tokens.size() != members_.size()) {
    return Invalid(StrCat("Commit with ", tokens.size(), " numbers of tokens; must be ",
                          members_.size(), ", one for each sequence"));
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) {
      return Invalid(StrCat("Commit of ", tokens[i], " tokens of sequence ",
                            Index(members_[i].sequence), "; must be at least 0"));
    }
    kept_[i].length = members_[i].length + std::min(tokens[i], kEndOfSequence - members_[i].length);
  }
  for (const CacheTransactions* const cache : caches_) {
    KVCACHE_RETURN_IF_ERROR(cache->CheckCommit(kept_));
  }
  const Status status = InHalves<TransactionPart>(
      caches_, [&](TwoPhaseTransactions& cache) { return cache.PrepareCommit(kept_); },
      [&](CacheTransactions& cache) { return cache.Commit(kept_); },
      [&](TwoPhaseTransactions& cache) { cache.FinishCommit(kept_); });
  if (!status.ok()) {
    RollBack();
    // The codes of a refusal would promise that the transaction continues.
    const bool refusal =
        status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
    return Status(refusal ? StatusCode::kInternal : status.code(),
                  "committing a transaction: " + status.message());
  }
  caches_.clear();
  return Status::Ok();
}

void Transaction::RollBack() {
  for (CacheTransactions* const cache : caches_) cache->RollBack(members_);
  caches_.clear();
}

}  // namespace kvcache
