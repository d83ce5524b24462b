#include "kvcache/transaction.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/strings.h"
#include "cache/cache_checks.h"
#include "kvcache/cache.h"

namespace kvcache {

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
  for (std::size_t i = 0; i < caches.size(); ++i) {
    if (caches[i] == nullptr) return Invalid(StrCat("cache ", i, " of the transaction is null"));
    if (std::find(caches.begin(), caches.begin() + i, caches[i]) != caches.begin() + i) {
      return Invalid(StrCat("cache ", i, " of the transaction is named twice"));
    }
  }
  Transaction transaction;
  transaction.isolated_ = options.isolated;
  std::vector<Cache*> all;
  try {
    all.assign(caches.begin(), caches.end());
    transaction.members_.assign(members.begin(), members.end());
    transaction.kept_.assign(members.begin(), members.end());
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for a transaction");
  }
  for (Cache* const cache : all) {
    KVCACHE_RETURN_IF_ERROR(cache->PrepareTransaction(members, options.max_tokens));
  }
  for (Cache* const cache : all) cache->BeginTransaction(members, options.max_tokens);
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
  for (Cache* const cache : caches_) KVCACHE_RETURN_IF_ERROR(cache->CheckCommit(kept_));
  for (Cache* const cache : caches_) {
    Status status = cache->PrepareCommit(kept_);
    if (status.ok()) continue;
    RollBack();
    // The codes of a refusal would promise that the transaction goes on.
    const bool refusal =
        status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
    return Status(refusal ? StatusCode::kInternal : status.code(),
                  "committing a transaction: " + status.message());
  }
  for (Cache* const cache : caches_) cache->FinishCommit(kept_);
  caches_.clear();
  return Status::Ok();
}

void Transaction::RollBack() {
  for (Cache* const cache : caches_) cache->RollBack(members_);
  caches_.clear();
}

}  // namespace kvcache
