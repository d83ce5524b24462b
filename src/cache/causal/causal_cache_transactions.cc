// The causal cache's calls for transactions (kvcache/transaction.h).
//
// A pass never writes to the cells of earlier tokens, so taking it back is a truncation. What a
// window would evict stays until the transaction has ended.
#include <cstdint>
#include <span>

#include "base/strings.h"
#include "cache/causal/causal_cache_impl.h"

namespace kvcache {

Status CausalCache::PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const SequenceId id = members[i].sequence;
    KVCACHE_RETURN_IF_ERROR(CheckSequence(id, storage_.options()));
    KVCACHE_RETURN_IF_ERROR(transactions_.CheckBegin(members, i, cells_.history(id).length()));
  }
  Unprepare();
  const std::int64_t needed = std::int64_t{max_tokens} * static_cast<std::int64_t>(members.size());
  evicts_first_ = false;
  KVCACHE_ASSIGN_OR_RETURN(std::int32_t available, pool_->CountAvailable(needed, {}));
  if (available >= needed) return Status::Ok();
  evicts_first_ = true;
  const std::span<const Eviction> evictions = eviction_.Plan(cells_, {}, transactions_);
  KVCACHE_ASSIGN_OR_RETURN(available, pool_->CountAvailable(needed, evictions));
  if (available >= needed) return Status::Ok();
  return {StatusCode::kCacheFull,
          StrCat("a transaction of ", max_tokens, " tokens of each of ", members.size(),
                 " sequences needs ", needed, " cells; ", available, " of ", cells_.cells(),
                 " are free (", sizes_text_, ")")};
}

void CausalCache::FinishBegin(std::span<const SequenceLength> members, Position max_tokens) {
  EndPass();
  if (evicts_first_) eviction_.Evict(cells_);
  transactions_.Open(members, max_tokens);
}

Status CausalCache::CheckCommit(std::span<const SequenceLength> kept) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  for (const SequenceLength& member : kept) {
    KVCACHE_RETURN_IF_ERROR(
        transactions_.CheckCommit(member, cells_.history(member.sequence).length()));
  }
  return Status::Ok();
}

void CausalCache::FinishCommit(std::span<const SequenceLength> kept) {
  EndPass();
  for (const auto& [sequence, length] : kept) {
    Truncate(sequence, length);
    eviction_.MarkGrown(sequence);
  }
  transactions_.Close(kept);
}

void CausalCache::RollBack(std::span<const SequenceLength> members) {
  if (!storage_.ready()) return;
  EndPass();
  for (const auto& [sequence, length] : members) {
    if (!transactions_.has(sequence)) continue;
    Truncate(sequence, transactions_.begin(sequence));
    eviction_.MarkGrown(sequence);
  }
  transactions_.Close(members);
}

}  // namespace kvcache
