#include "cache/causal/causal_transactions.h"

#include <cstdint>
#include <span>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/causal/causal_cache_impl.h"

namespace kvcache {

Status CausalTransactions::PrepareBegin(std::span<const SequenceLength> members,
                                        Position max_tokens) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const SequenceId id = members[i].sequence;
    KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
    KVCACHE_RETURN_IF_ERROR(
        parts_.transactions.CheckBegin(members, i, parts_.cells.history(id).length()));
  }
  pass_.Unprepare();
  const std::int64_t needed = std::int64_t{max_tokens} * static_cast<std::int64_t>(members.size());
  evicts_first_ = false;
  KVCACHE_ASSIGN_OR_RETURN(std::int32_t available, parts_.pool->CountAvailable(needed, {}));
  if (available >= needed) return Status::Ok();
  evicts_first_ = true;
  const std::span<const Eviction> evictions =
      parts_.eviction.Plan(parts_.cells, {}, parts_.transactions);
  KVCACHE_ASSIGN_OR_RETURN(available, parts_.pool->CountAvailable(needed, evictions));
  if (available >= needed) return Status::Ok();
  return CacheFull(StrCat("a transaction of ", max_tokens, " tokens of each of ", members.size(),
                          " sequences needs ", needed, " cells; ", available, " of ",
                          parts_.cells.cells(), " are free (", parts_.sizes_text, ")"));
}

void CausalTransactions::FinishBegin(std::span<const SequenceLength> members, Position max_tokens) {
  pass_.End();
  if (evicts_first_) parts_.eviction.Evict(parts_.cells);
  parts_.transactions.Open(members, max_tokens);
}

Status CausalTransactions::CheckCommit(std::span<const SequenceLength> kept) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  for (const SequenceLength& member : kept) {
    KVCACHE_RETURN_IF_ERROR(
        parts_.transactions.CheckCommit(member, parts_.cells.history(member.sequence).length()));
  }
  return Status::Ok();
}

void CausalTransactions::FinishCommit(std::span<const SequenceLength> kept) {
  pass_.End();
  for (const auto& [sequence, length] : kept) {
    cache_.Truncate(sequence, length);
    parts_.eviction.MarkGrown(sequence);
  }
  parts_.transactions.Close(kept);
}

void CausalTransactions::RollBack(std::span<const SequenceLength> members) {
  if (!parts_.storage.ready()) return;
  pass_.End();
  for (const auto& [sequence, length] : members) {
    if (!parts_.transactions.has(sequence)) continue;
    cache_.Truncate(sequence, parts_.transactions.begin(sequence));
    parts_.eviction.MarkGrown(sequence);
  }
  parts_.transactions.Close(members);
}

}  // namespace kvcache
