#include "cache/captures.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {
namespace {

Status NoMemory() {
  return {StatusCode::kOutOfMemory, "no memory for scheduled captures"};
}

}  // namespace

void Captures::Reset(SnapshotPool* pool, const CellTable* cells, int sequences, int window) {
  pool_ = pool;
  cells_ = cells;
  window_ = window;
  of_.clear();
  of_.resize(sequences);
  scheduled_ = 0;
}

Status Captures::Schedule(SequenceId id, Position begin, std::span<const Position> lengths) {
  Lengths& own = of_[Index(id)];
  KVCACHE_RETURN_IF_ERROR(
      CheckCaptures(id, cells_->history(id).length(), own.lengths.size(), begin, lengths));
  if (lengths.empty()) return Status::Ok();
  try {
    std::vector<Position> copy(lengths.begin(), lengths.end());
    own.taken.resize(lengths.size());
    own.lengths = std::move(copy);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  own.begin = begin;
  own.next = 0;
  ++scheduled_;
  return Status::Ok();
}

Result<std::vector<std::unique_ptr<Snapshot>>> Captures::Take(SequenceId id) {
  Lengths& own = of_[Index(id)];
  std::vector<std::unique_ptr<Snapshot>> result;
  try {
    result.reserve(own.taken.size());
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  for (SnapshotPtr& snapshot : own.taken) result.push_back(std::move(snapshot));
  Cancel(id);
  return result;
}

Status Captures::Plan(SequenceId id, Position length, std::size_t tokens, Position evicted) {
  const Lengths& own = of_[Index(id)];
  for (std::size_t i = own.next; i < own.lengths.size() && own.lengths[i] <= length; ++i) {
    const Position end = own.lengths[i];
    const Position begin = i == 0 ? own.begin : own.lengths[i - 1];
    const Position first = window_ > 0 ? std::max(0, end - window_) : begin;
    // In the worst case each new token is a run of its own and splits another one.
    const std::size_t runs = cells_->history(id).runs().size() + 2 * tokens + 1;
    auto snapshot = pool_->Make(begin, end, runs);
    if (!snapshot.ok()) return snapshot.status();
    try {
      planned_.push_back({id, std::move(*snapshot), first, evicted});
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
    pool_->Hold(*planned_.back().snapshot, id, first, std::min(evicted, end));
  }
  return Status::Ok();
}

void Captures::Fire() {
  for (Planned& planned : planned_) {
    Lengths& own = of_[Index(planned.id)];
    CausalSnapshot& snapshot = *planned.snapshot;
    pool_->HoldMore(snapshot, planned.id, std::max(planned.first, planned.evicted), snapshot.end());
    const bool empty = snapshot.begin() == snapshot.end() && snapshot.first() == snapshot.end();
    if (!empty) own.taken[own.next] = std::move(planned.snapshot);
    ++own.next;
  }
  planned_.clear();
}

void Captures::DropPlanned() {
  planned_.clear();
}

void Captures::Truncate(SequenceId id, Position length) {
  Lengths& own = of_[Index(id)];
  while (own.next > 0 && own.lengths[own.next - 1] > length) own.taken[--own.next].reset();
  if (own.begin > length) Cancel(id);
}

void Captures::Cancel(SequenceId id) {
  Lengths& own = of_[Index(id)];
  if (!own.lengths.empty()) --scheduled_;
  own.lengths.clear();
  own.taken.clear();
  own.next = 0;
}

void Captures::Clear() {
  planned_.clear();
  of_.clear();
  scheduled_ = 0;
}

}  // namespace kvcache
