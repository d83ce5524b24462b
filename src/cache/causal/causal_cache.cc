#include "kvcache/causal_cache.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/causal/causal_cache_impl.h"

namespace kvcache {

Status CausalCache::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckInit(backend, options));
  Status status = Guarded([&] { return "no memory for the metadata of " + SizesText(options); },
                          [&] {
                            parts_.Reset(backend, options);
                            pass_.Reset(options.max_batch);
                            starts_late_.assign(options.max_sequences, 0);
                          });
  if (status.ok()) {
    parts_.Open(backend, options);
  } else {
    parts_.Clear();
    pass_.Clear();
  }
  return status;
}

void CausalCache::Close() {
  pass_.End();
  snapshots_.Clear();
  pass_.Clear();
  parts_.Close();
}

Position CausalCache::Length(SequenceId id) const {
  return parts_.storage.ready() && parts_.cells.Knows(id) ? parts_.cells.history(id).length() : 0;
}

Status CausalCache::FindCells(SequenceId id, Position begin, Position end,
                              std::vector<HistoryRun>& runs) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  const RunList& history = parts_.cells.history(id);
  const auto range = [&] {
    return StrCat("a view of positions [", begin, ", ", end, ") of sequence ", Index(id));
  };
  if (end > history.length()) {
    return Invalid(StrCat(range(), ", which has ", history.length(), " tokens"));
  }
  Position next = begin;
  runs.clear();
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a view of a sequence", [&] {
    for (std::size_t i = history.FirstEndingAfter(begin); next < end; ++i) {
      const HistoryRun part = Clip(history.runs()[i], begin, end);
      if (part.length == 0 || part.position != next) break;
      runs.push_back(part);
      next += part.length;
    }
  }));
  if (next == end) return Status::Ok();
  return Unsupported(StrCat(range(), ", which has no token at ", next));
}

Status CausalCache::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(src));
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(dst));
  KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
  KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckChange(dst));
  if (src == dst) {
    Truncate(dst, length);
  } else {
    KVCACHE_RETURN_IF_ERROR(parts_.cells.Share(src, dst, length));
    parts_.eviction.MarkGrown(dst);
    parts_.captures.Cancel(dst);
    starts_late_[Index(dst)] = starts_late_[Index(src)];
  }
  pass_.End();
  return Status::Ok();
}

void CausalCache::Truncate(SequenceId id, Position length) {
  parts_.cells.Truncate(id, length);
  if (parts_.captures.any()) parts_.captures.Truncate(id, length);
  if (parts_.cells.history(id).empty()) starts_late_[Index(id)] = 0;
}

void CausalCache::Replace(SequenceId id, Position begin, CellHold& hold) {
  parts_.captures.Cancel(id);
  parts_.cells.Adopt(id, begin, hold);
  parts_.eviction.MarkGrown(id);
  const RunList& history = parts_.cells.history(id);
  starts_late_[Index(id)] =
      parts_.has_window() && !history.empty() && history.runs().front().position > 0;
}

// With a window, the oldest kept position must not be above the first one that a query at
// `position` sees. Without eviction, only positions that the caller skipped can be missing.
bool CausalCache::CanResume(SequenceId id, Position position) const {
  if (!parts_.storage.ready() || !parts_.cells.Knows(id)) return false;
  const RunList& history = parts_.cells.history(id);
  if (position < 0 || position > history.length()) return false;
  if (history.empty() || (parts_.eviction.keeps_everything() && starts_late_[Index(id)] == 0)) {
    return true;
  }
  return history.runs().front().position <= std::max(0, position - parts_.options.window + 1);
}

Result<Position> CausalCache::PrepareRestore(SequenceId id, Position target) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
  const Position kept = std::clamp(target, 0, parts_.cells.history(id).length());
  return CanResume(id, kept) ? kept : 0;
}

bool CausalCache::RemovesMiddle(SequenceId id, Position begin, Position end) const {
  return begin < end && end < parts_.cells.history(id).length();
}

Status CausalCache::CheckRemove(SequenceId id, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckChange(id));
  if (!RemovesMiddle(id, begin, end)) return Status::Ok();
  if (!parts_.options.shift_keys) {
    return Unsupported(
        StrCat("positions [", begin, ", ", end, ") of ", parts_.cells.history(id).length(),
               " are a middle range; removing them needs CausalOptions::shift_keys"));
  }
  return parts_.pool->CheckRemoveMiddle(id, end);
}

Status CausalCache::Remove(SequenceId id, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(id, begin, end));
  if (RemovesMiddle(id, begin, end)) return RemoveMiddle(id, begin, end);
  if (end >= parts_.cells.history(id).length()) Truncate(id, begin);
  pass_.End();
  return Status::Ok();
}

Status CausalCache::RemoveMiddle(SequenceId id, Position begin, Position end) {
  parts_.captures.Cancel(id);
  KVCACHE_RETURN_IF_ERROR(parts_.pool->EnsureCapacityForRemoval(id, end));
  KVCACHE_ASSIGN_OR_RETURN(const MiddleRemoval removal, parts_.cells.RemoveMiddle(id, begin, end));
  pass_.End();
  for (int layer = 0; layer < parts_.storage.layers().size(); ++layer) {
    const LayerKv* storage = parts_.storage.layers().Find(layer);
    if (storage == nullptr) continue;
    if (!removal.copies.empty()) {
      KVCACHE_RETURN_IF_ERROR(parts_.storage.backend().CopyCells(*storage, removal.copies));
    }
    KVCACHE_RETURN_IF_ERROR(
        parts_.options.shift_keys(layer, *storage, removal.shifted, begin - end));
  }
  return Status::Ok();
}

Status CausalCache::EvictWindow(SequenceId id) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
  KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckChange(id));
  pass_.End();
  parts_.eviction.EvictOne(parts_.cells, id);
  return Status::Ok();
}

Status CausalCache::PrepareTransaction(std::span<const SequenceLength> members,
                                       Position max_tokens) {
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

void CausalCache::BeginTransaction() {
  pass_.End();
  if (evicts_first_) parts_.eviction.Evict(parts_.cells);
}

void CausalCache::KeepTokens(SequenceId id, Position length) {
  Truncate(id, length);
  parts_.eviction.MarkGrown(id);
}

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options) {
  return std::make_unique<CausalCache>(std::move(options));
}

}  // namespace kvcache
