#include "cache/recurrent/state_table.h"

#include <algorithm>
#include <cassert>

#include "cache/recurrent/state_store.h"

namespace kvcache {

namespace {

// In a transaction a sequence has its restore points twice, and another state when it ends.
std::int64_t CellsOfRounds(const StateTable::Options& options) {
  if (options.round_states == 0) return 0;
  const std::int64_t per_sequence = 3 + std::int64_t{options.checkpoints.count};
  return options.sequences * per_sequence + options.round_states;
}

}  // namespace

std::int64_t StateTable::CellsFor(const Options& options) {
  const std::int64_t per_sequence = 2 + std::int64_t{options.checkpoints.count};
  return 2 + options.sequences * per_sequence + options.pass_sequences + options.snapshot_states +
         CellsOfRounds(options);
}

void StateTable::Reset(const Options& options) {
  options_ = options;
  cells_.Reset(static_cast<std::int32_t>(CellsFor(options)));
  live_uses_.assign(cells_.size(), 0);
  live_states_ = 0;
  points_.clear();
  points_.resize(options.sequences);
  cells_of_rounds_ = static_cast<std::int32_t>(CellsOfRounds(options));
  saved_sequences_ = 0;
  saved_.clear();
  saved_.resize(options.sequences);
  for (Points& points : saved_) points.checkpoints.reserve(options.checkpoints.count);
  cells_.Take(StateStore::kZeros);  // never released
  for (Points& points : points_) {
    points.checkpoints.reserve(options.checkpoints.count);
    points.live = {StateStore::kZeros, 0};
    Share(points.live);
  }
}

void StateTable::Forget(StatePoint& point) {
  if (point.known()) cells_.Release(point.cell);
  point = {};
}

void StateTable::CountUse(const StatePoint& point, std::int32_t by) {
  if (!point.known() || point.cell == StateStore::kZeros) return;
  std::int32_t& uses = live_uses_[point.cell];
  if (uses == 0) ++live_states_;
  uses += by;
  if (uses == 0) --live_states_;
}

void StateTable::SetLive(Points& points, const StatePoint& point) {
  CountUse(points.live, -1);
  Forget(points.live);
  points.live = point;
  CountUse(points.live, 1);
}

// A state that several of the sequences share loses its last user with the last of them only. So
// the uses are decremented, the states counted, and the uses restored.
std::int32_t StateTable::CountStates(std::span<const SequenceId> sequences) {
  for (const SequenceId id : sequences) CountUse(live(id), -1);
  const std::int32_t others = live_states_;
  for (const SequenceId id : sequences) CountUse(live(id), 1);
  return others + static_cast<std::int32_t>(sequences.size());
}

void StateTable::DropBefore(SequenceId id) {
  Forget(of(id).before);
}

void StateTable::Commit(SequenceId id, std::int32_t cell, Position tokens) {
  Points& points = of(id);
  assert(!points.before.known());
  points.before = points.live;
  Share(points.before);
  SetLive(points, {cell, tokens});
  AddCheckpoint(points);
}

void StateTable::AddCheckpoint(Points& points) {
  const auto& [count, spacing, minimum] = options_.checkpoints;
  std::vector<StatePoint>& checkpoints = points.checkpoints;
  if (count == 0 || points.live.tokens - 1 < minimum) return;
  if (!checkpoints.empty() && points.live.tokens - checkpoints.back().tokens < spacing) return;
  if (checkpoints.size() == static_cast<std::size_t>(count)) {
    Forget(checkpoints.front());
    checkpoints.erase(checkpoints.begin());
  }
  checkpoints.push_back(points.live);
  Share(points.live);
}

void StateTable::ForgetAll(Points& points) {
  Forget(points.before);
  for (StatePoint& point : points.checkpoints) Forget(point);
  points.checkpoints.clear();
}

void StateTable::Clear(SequenceId id) {
  Points& points = of(id);
  ForgetAll(points);
  const StatePoint zeros{StateStore::kZeros, 0};
  Share(zeros);
  SetLive(points, zeros);
}

void StateTable::Save(SequenceId id) {
  const Points& points = of(id);
  Points& saved = saved_[Index(id)];
  assert(!saved.live.known() && !saved.before.known() && saved.checkpoints.empty());
  ++saved_sequences_;
  saved.live = points.live;
  saved.before = points.before;
  saved.checkpoints.assign(points.checkpoints.begin(), points.checkpoints.end());
  if (saved.live.known()) Share(saved.live);
  if (saved.before.known()) Share(saved.before);
  for (const StatePoint& point : saved.checkpoints) Share(point);
}

void StateTable::Revert(SequenceId id) {
  Points& points = of(id);
  Points& saved = saved_[Index(id)];
  ForgetAll(points);
  SetLive(points, saved.live);
  points.before = saved.before;
  points.checkpoints.assign(saved.checkpoints.begin(), saved.checkpoints.end());
  saved.live = {};
  saved.before = {};
  saved.checkpoints.clear();
  --saved_sequences_;
}

void StateTable::Share(SequenceId src, SequenceId dst, Position length) {
  assert(src != dst);
  Clear(dst);
  if (length == 0) return;
  const auto within = [length](const StatePoint& point) {
    return point.known() && point.tokens <= length;
  };
  const Points& source = of(src);
  Points& target = of(dst);
  const StatePoint live = within(source.live) ? source.live : StatePoint{};
  if (live.known()) Share(live);
  SetLive(target, live);
  if (within(source.before)) {
    target.before = source.before;
    Share(target.before);
  }
  for (const StatePoint& point : source.checkpoints) {
    if (!within(point)) break;
    target.checkpoints.push_back(point);
    Share(point);
  }
}

Position StateTable::Newest(SequenceId id, Position target) const {
  const Points& points = of(id);
  Position newest = 0;
  const auto consider = [&](const StatePoint& point) {
    if (point.known() && point.tokens <= target) newest = std::max(newest, point.tokens);
  };
  consider(points.live);
  consider(points.before);
  for (const StatePoint& point : points.checkpoints) consider(point);
  return newest;
}

StatePoint StateTable::Find(SequenceId id, Position tokens) const {
  const Points& points = of(id);
  for (const StatePoint& point : {points.live, points.before}) {
    if (point.known() && point.tokens == tokens) return point;
  }
  for (const StatePoint& point : points.checkpoints) {
    if (point.tokens == tokens) return point;
  }
  return {};
}

void StateTable::Replace(SequenceId id, const StatePoint& point, Position kept) {
  Points& points = of(id);
  const Position max = std::min(kept, point.tokens - 1);
  SetLive(points, point);
  if (points.before.known() && points.before.tokens > max) Forget(points.before);
  while (!points.checkpoints.empty() && points.checkpoints.back().tokens > max) {
    Forget(points.checkpoints.back());
    points.checkpoints.pop_back();
  }
}

void StateTable::GoBack(SequenceId id, Position tokens) {
  if (tokens == 0) return Clear(id);
  Points& points = of(id);
  const StatePoint found = Find(id, tokens);
  assert(found.known());
  Share(found);
  SetLive(points, found);
  if (points.before.known() && points.before.tokens >= tokens) Forget(points.before);
  while (!points.checkpoints.empty() && points.checkpoints.back().tokens > tokens) {
    Forget(points.checkpoints.back());
    points.checkpoints.pop_back();
  }
}

// A restore point after `tokens` tokens stays if all are before the range, is dropped if its last
// token is in the range, and else counts end - begin tokens fewer.
void StateTable::RemoveMiddle(SequenceId id, Position begin, Position end) {
  Points& points = of(id);
  const auto moved = [begin, end](StatePoint point) {
    if (!point.known() || point.tokens <= begin) return point;
    if (point.tokens <= end) return StatePoint{};
    point.tokens -= end - begin;
    return point;
  };
  const auto move = [&](StatePoint& point) {
    const StatePoint after = moved(point);
    if (after.known()) {
      point = after;
    } else {
      Forget(point);
    }
  };
  if (const StatePoint live = moved(points.live); live.known()) {
    points.live = live;
  } else {
    SetLive(points, {});
  }
  move(points.before);
  for (StatePoint& point : points.checkpoints) move(point);
  std::erase_if(points.checkpoints, [](const StatePoint& point) { return !point.known(); });
}

}  // namespace kvcache
