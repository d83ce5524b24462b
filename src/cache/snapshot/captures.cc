#include "cache/snapshot/captures.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "cache/cache_checks.h"

namespace kvcache {

void Captures::Reset(SnapshotPool* pool, const CellTable* cells, int sequences, int window) {
  pool_ = pool;
  cells_ = cells;
  window_ = window;
  schedule_.Reset(sequences);
}

Status Captures::Schedule(SequenceId id, Position begin, std::span<const Position> lengths) {
  const std::size_t scheduled = schedule_.of(id).lengths.size();
  KVCACHE_RETURN_IF_ERROR(
      CheckCaptures(id, cells_->history(id).length(), scheduled, begin, lengths));
  return schedule_.Schedule(id, begin, lengths);
}

Result<std::vector<std::unique_ptr<Snapshot>>> Captures::Take(SequenceId id) {
  auto& taken = schedule_.of(id).taken;
  std::vector<std::unique_ptr<Snapshot>> result;
  KVCACHE_RETURN_IF_ERROR(Guarded(kNoMemoryForCaptures, [&] { result.reserve(taken.size()); }));
  for (auto& snapshot : taken) result.push_back(std::move(snapshot));
  Cancel(id);
  return result;
}

Status Captures::Plan(SequenceId id, Position length, std::size_t tokens, Position evicted) {
  const auto& own = schedule_.of(id);
  for (std::size_t i = own.next; i < own.lengths.size() && own.lengths[i] <= length; ++i) {
    const Position end = own.lengths[i];
    const Position begin = own.BeginOf(i);
    const Position first = window_ > 0 ? std::max(0, end - window_) : begin;
    // In the worst case each new token is a run of its own and splits another one.
    const std::size_t runs = cells_->history(id).runs().size() + 2 * tokens + 1;
    auto snapshot = pool_->Make(begin, end, runs);
    if (!snapshot.ok()) return snapshot.status();
    KVCACHE_RETURN_IF_ERROR(Guarded(kNoMemoryForCaptures, [&] {
      planned_.push_back({id, std::move(*snapshot), first, evicted});
    }));
    pool_->Hold(*planned_.back().snapshot, id, first, std::min(evicted, end));
  }
  return Status::Ok();
}

void Captures::Fire() {
  for (Planned& planned : planned_) {
    auto& own = schedule_.of(planned.id);
    CausalSnapshot& snapshot = *planned.snapshot;
    pool_->Hold(snapshot, planned.id, std::max(planned.first, planned.evicted), snapshot.end());
    const bool empty = snapshot.begin() == snapshot.end() && snapshot.first() == snapshot.end();
    if (!empty) own.taken[own.next] = std::move(planned.snapshot);
    ++own.next;
  }
  planned_.clear();
}

void Captures::DropPlanned() {
  planned_.clear();
}

void Captures::Clear() {
  planned_.clear();
  schedule_.Clear();
}

}  // namespace kvcache
