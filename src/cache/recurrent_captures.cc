#include "cache/recurrent_captures.h"

#include <algorithm>
#include <new>
#include <utility>

namespace kvcache {
namespace {

Status NoMemory() {
  return {StatusCode::kOutOfMemory, "no memory for scheduled captures"};
}

}  // namespace

void RecurrentCaptures::Reset(RecurrentSnapshotPool* pool, int sequences) {
  pool_ = pool;
  of_.clear();
  of_.resize(sequences);
  scheduled_ = 0;
}

void RecurrentCaptures::Clear() {
  DropPlanned();
  Abandon();
  of_.clear();
  scheduled_ = 0;
}

Status RecurrentCaptures::Schedule(SequenceId id, Position begin,
                                   std::span<const Position> lengths) {
  if (lengths.empty()) return Status::Ok();
  Lengths& own = of_[Index(id)];
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

RecurrentCaptures::SnapshotPtr RecurrentCaptures::Take(SequenceId id, std::size_t index) {
  return std::move(of_[Index(id)].taken[index]);
}

void RecurrentCaptures::Truncate(SequenceId id, Position length) {
  Lengths& own = of_[Index(id)];
  while (own.next > 0 && own.lengths[own.next - 1] > length) own.taken[--own.next].reset();
  if (own.begin > length) Cancel(id);
}

// A pass in progress or prepared may still have captures of this schedule.
void RecurrentCaptures::Cancel(SequenceId id) {
  Lengths& own = of_[Index(id)];
  if (!own.lengths.empty()) --scheduled_;
  own.lengths.clear();
  own.taken.clear();
  own.next = 0;
  const auto is_own = [id](const Planned& planned) { return planned.id == id; };
  std::erase_if(pending_, is_own);
  std::erase_if(planned_, is_own);
}

// The state after a length is the one after the last token before it: positions may have gaps.
Status RecurrentCaptures::Plan(SequenceId id, std::int32_t member, const StatePoint& before,
                               std::span<const Position> positions) {
  const Lengths& own = of_[Index(id)];
  for (std::size_t i = own.next; i < own.lengths.size(); ++i) {
    const Position end = own.lengths[i];
    if (end > positions.back() + 1) break;
    const auto tokens = static_cast<std::int32_t>(
        std::lower_bound(positions.begin(), positions.end(), end) - positions.begin());
    Planned planned{.id = id, .index = i, .state = {StatePoint::kNone, end}};
    try {
      if (tokens == 0) {
        planned.state.cell = before.cell;
      } else if (tokens == static_cast<std::int32_t>(positions.size())) {
        planned.source = Source::kAfter;
        planned.at = member;
      } else {
        planned.source = Source::kCut;
        const bool same = !planned_cuts_.empty() && planned_cuts_.back().member == member &&
                          planned_cuts_.back().tokens == tokens;
        if (!same) planned_cuts_.push_back({member, tokens});
        planned.at = static_cast<std::int32_t>(planned_cuts_.size()) - 1;
      }
      const bool known = end > 0 && (tokens > 0 || before.tokens <= end);
      if (known) {
        KVCACHE_ASSIGN_OR_RETURN(planned.snapshot,
                                 pool_->Make(i == 0 ? own.begin : own.lengths[i - 1], end));
      }
      planned_.push_back(std::move(planned));
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
  }
  return Status::Ok();
}

void RecurrentCaptures::DropPlanned() {
  planned_.clear();
  planned_cuts_.clear();
}

void RecurrentCaptures::Fire(Planned& planned, std::int32_t cell) {
  if (planned.snapshot == nullptr) return;
  planned.state.cell = cell;
  pool_->Hold(*planned.snapshot, planned.state);
  of_[Index(planned.id)].taken[planned.index] = std::move(planned.snapshot);
}

void RecurrentCaptures::Begin() {
  std::swap(pending_, planned_);
  DropPlanned();
  for (Planned& pending : pending_) {
    ++of_[Index(pending.id)].next;
    if (pending.source == Source::kBefore) Fire(pending, pending.state.cell);
  }
}

void RecurrentCaptures::Finish(std::span<const std::int32_t> after,
                               std::span<const std::int32_t> cuts) {
  for (Planned& pending : pending_) {
    if (pending.source == Source::kCut) Fire(pending, cuts[pending.at]);
    if (pending.source == Source::kAfter) Fire(pending, after[pending.at]);
  }
  pending_.clear();
}

}  // namespace kvcache
