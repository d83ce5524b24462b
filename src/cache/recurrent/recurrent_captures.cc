#include "cache/recurrent/recurrent_captures.h"
#include "base/errors.h"

#include <algorithm>
#include <utility>

namespace kvcache {

void RecurrentCaptures::Reset(RecurrentSnapshotPool* pool, int sequences) {
  pool_ = pool;
  schedule_.Reset(sequences);
}

void RecurrentCaptures::Clear() {
  DropPlanned();
  Abandon();
  schedule_.Clear();
}

RecurrentCaptures::OwnPtr RecurrentCaptures::Take(SequenceId id, std::size_t index) {
  return std::move(schedule_.of(id).taken[index]);
}

void RecurrentCaptures::Truncate(SequenceId id, Position length) {
  if (schedule_.of(id).begin > length) return Cancel(id);
  schedule_.Truncate(id, length);
}

// A pass in progress or prepared may still have captures of this schedule.
void RecurrentCaptures::Cancel(SequenceId id) {
  schedule_.Cancel(id);
  const auto is_own = [id](const Planned& planned) { return planned.id == id; };
  std::erase_if(pending_, is_own);
  std::erase_if(planned_, is_own);
}

// The state after a length is the one after the last token before it: positions may have gaps.
Status RecurrentCaptures::Plan(SequenceId id, std::int32_t member, const StatePoint& before,
                               std::span<const Position> positions) {
  const auto& own = schedule_.of(id);
  for (std::size_t i = own.next; i < own.lengths.size(); ++i) {
    const Position end = own.lengths[i];
    if (end > positions.back() + 1) break;
    const auto tokens = static_cast<std::int32_t>(
        std::lower_bound(positions.begin(), positions.end(), end) - positions.begin());
    Planned planned{.id = id, .index = i, .state = {StatePoint::kNone, end}};
    Status status = Guarded(kNoMemoryForCaptures, [&]() -> Status {
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
        KVCACHE_ASSIGN_OR_RETURN(planned.snapshot, pool_->Make(own.BeginOf(i), end));
      }
      planned_.push_back(std::move(planned));
      return Status::Ok();
    });
    if (!status.ok()) return status;
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
  schedule_.of(planned.id).taken[planned.index] = std::move(planned.snapshot);
}

void RecurrentCaptures::Begin() {
  std::swap(pending_, planned_);
  DropPlanned();
  for (Planned& pending : pending_) {
    ++schedule_.of(pending.id).next;
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
