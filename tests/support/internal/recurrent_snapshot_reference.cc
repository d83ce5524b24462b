// The snapshots of the recurrent cache's reference model: by definition, those of its attention, and
// the states themselves.
#include <algorithm>
#include <utility>

#include "support/internal/recurrent_reference.h"

namespace kvcache::testing {

// `point.tokens` is the length that the state belongs to; in a wrapper the range may be another.
struct RecurrentReference::Kept : ReferenceSnapshot {
  using ReferenceSnapshot::ReferenceSnapshot;
  ReferenceSnapshotPtr attention;  // may be null
  Point point;
  bool in_page = false;

  static const Kept& Of(const ReferenceSnapshot& snapshot) {
    return dynamic_cast<const Kept&>(snapshot);
  }
};

const RecurrentReference::Point* RecurrentReference::PointAt(int sequence, Position tokens) const {
  const Sequence& s = sequences_[sequence];
  for (const std::optional<Point>* point : {&s.live, &s.before}) {
    if (point->has_value() && (*point)->tokens == tokens) return &**point;
  }
  for (const Point& point : s.checkpoints) {
    if (point.tokens == tokens) return &point;
  }
  return nullptr;
}

StatusCode RecurrentReference::CheckSnapshot(int sequence, Position begin, Position end) const {
  const StatusCode code = attention_.CheckSnapshot(sequence, begin, end);
  if (code != StatusCode::kOk || end == 0) return code;
  return PointAt(sequence, end) != nullptr ? StatusCode::kOk : StatusCode::kUnsupported;
}

ReferenceSnapshotPtr RecurrentReference::TakeSnapshot(int sequence, Position begin, Position end) {
  if (end == 0) return nullptr;
  auto snapshot = std::make_shared<Kept>(begin, end);
  snapshot->attention = attention_.TakeSnapshot(sequence, begin, end);
  snapshot->point = *PointAt(sequence, end);
  return snapshot;
}

StatusCode RecurrentReference::CheckRestore(int sequence, const ReferenceSnapshot* snapshot,
                                            Position target) const {
  if (sequence < 0 || sequence >= setup_.options.max_sequences || rounds_.count(sequence) != 0) {
    return StatusCode::kInvalidArgument;
  }
  if (snapshot == nullptr) {
    const StatusCode code = attention_.CheckRestore(sequence, nullptr, target);
    const bool known = target == 0 || PointAt(sequence, target) != nullptr;
    return code == StatusCode::kOk && !known ? StatusCode::kUnsupported : code;
  }
  if (target < 0 || target > snapshot->end) return StatusCode::kInvalidArgument;
  const Kept& own = Kept::Of(*snapshot);
  const Position held = own.attention == nullptr ? length(sequence) : own.attention->end;
  if (target != own.point.tokens || target > held) return StatusCode::kUnsupported;
  return attention_.CheckRestore(sequence, own.attention.get(), target);
}

// The restore points of tokens that stay are kept. A window's tokens are all replaced.
void RecurrentReference::Restore(int sequence, const ReferenceSnapshot* snapshot, Position target) {
  EndPass();
  Sequence& s = sequences_[sequence];
  if (snapshot == nullptr) {
    s.prepared = target;
    return Remove(sequence, target, kEndOfSequence);
  }
  const Kept& own = Kept::Of(*snapshot);
  const bool window = recurrent_.attention.window > 0;
  const bool goes_back = own.attention == nullptr || (!window && target <= own.attention->begin);
  const Position kept = goes_back ? target : window ? 0 : own.attention->begin;
  attention_.Restore(sequence, own.attention.get(), target);
  Point point = own.point;
  if (own.in_page) point.copy = ++copies_;
  const auto gone = [&](const Point& p) { return p.tokens > kept || p.tokens >= target; };
  if (s.before.has_value() && gone(*s.before)) s.before.reset();
  std::erase_if(s.checkpoints, gone);
  s.live = point;
  s.prepared.reset();
  captures_[sequence] = {};
  attention_.TakeCaptures(sequence);
  restored_ = true;
}

ReferenceSnapshotPtr RecurrentReference::Merge(const ReferenceSnapshotPtr& parent,
                                               const ReferenceSnapshotPtr& child) {
  const Kept& first = Kept::Of(*parent);
  const Kept& second = Kept::Of(*child);
  auto merged = std::make_shared<Kept>(parent->begin, child->end);
  merged->point = second.point;
  merged->in_page = second.in_page;
  merged->attention = second.attention != nullptr ? second.attention : first.attention;
  if (first.attention != nullptr && second.attention != nullptr &&
      first.attention->end == second.attention->begin) {
    merged->attention = attention_.Merge(first.attention, second.attention);
  }
  return merged;
}

std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> RecurrentReference::Split(
    const ReferenceSnapshotPtr& snapshot, Position /*position*/) {
  return {nullptr, snapshot};
}

StatusCode RecurrentReference::CheckSchedule(int sequence, Position begin,
                                             const std::vector<Position>& lengths) const {
  return attention_.CheckSchedule(sequence, begin, lengths);
}

void RecurrentReference::Schedule(int sequence, Position begin,
                                  const std::vector<Position>& lengths) {
  attention_.Schedule(sequence, begin, lengths);
  if (lengths.empty()) return;
  captures_[sequence] = {lengths, std::vector<std::optional<Point>>(lengths.size()), begin, 0};
}

std::vector<ReferenceSnapshotPtr> RecurrentReference::TakeCaptures(int sequence) {
  const Captures captures = std::exchange(captures_[sequence], {});
  std::erase_if(reached_, [&](const Reached& r) { return r.sequence == sequence; });
  std::vector<ReferenceSnapshotPtr> parts = attention_.TakeCaptures(sequence);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ReferenceSnapshotPtr attention = std::exchange(parts[i], nullptr);
    if (!captures.taken[i].has_value()) continue;
    auto snapshot =
        std::make_shared<Kept>(BeginOf(captures.begin, captures.lengths, i), captures.lengths[i]);
    snapshot->attention = std::move(attention);
    snapshot->point = *captures.taken[i];
    parts[i] = std::move(snapshot);
  }
  return parts;
}

std::vector<TestToken> RecurrentReference::TokensOf(int sequence, const TestBatch& batch) const {
  std::vector<TestToken> tokens;
  for (const TestToken& token : batch.tokens) {
    if (token.sequence == sequence) tokens.push_back(token);
  }
  return tokens;
}

std::vector<TestToken> RecurrentReference::PathTo(int index) const {
  std::vector<TestToken> path;
  for (; index >= 0; index = batch_.parents[index]) path.push_back(batch_.tokens[index]);
  std::reverse(path.begin(), path.end());
  return path;
}

// Captures in a gap between positions have the same state, and count once.
int RecurrentReference::CountInside(int sequence, const std::vector<TestToken>& tokens) const {
  const Captures& captures = captures_[sequence];
  int inside = 0;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const auto between = [&](Position length) {
      return length > tokens[i].position && length <= tokens[i + 1].position;
    };
    inside += std::any_of(captures.lengths.begin() + static_cast<std::ptrdiff_t>(captures.next),
                          captures.lengths.end(), between);
  }
  return inside;
}

void RecurrentReference::Reach(int sequence, const std::vector<TestToken>& tokens) {
  Captures& captures = captures_[sequence];
  for (std::size_t& i = captures.next; i < captures.lengths.size(); ++i) {
    const Position end = captures.lengths[i];
    if (end > tokens.back().position + 1) break;
    std::uint32_t state = 0;
    bool inside = false;
    for (const TestToken& token : tokens) {
      if (token.position >= end) break;
      state = token.content;
      inside = true;
    }
    if (inside) {
      reached_.push_back({sequence, i, state});
      continue;
    }
    const std::optional<Point>& live = sequences_[sequence].live;
    if (end == 0 || !live.has_value() || live->tokens > end) continue;
    captures.taken[i] = Point{live->state, end, live->copy};
  }
}

void RecurrentReference::TruncateCaptures(int sequence, Position length) {
  Captures& captures = captures_[sequence];
  while (captures.next > 0 && captures.lengths[captures.next - 1] > length) {
    captures.taken[--captures.next].reset();
  }
  if (captures.begin > length) captures = {};
}

// A state that is in host memory now comes back as a new one. Zeros are in no cell.
void RecurrentReference::Follow(ReferenceSnapshot& snapshot, const Snapshot& real) {
  Kept& own = dynamic_cast<Kept&>(snapshot);
  const Snapshot* const part = real.Part(0);
  std::int64_t bytes = real.HeldBytes();
  if ((part == nullptr) != (own.attention == nullptr) ||
      (part != nullptr &&
       (part->begin() != own.attention->begin || part->end() != own.attention->end))) {
    seen_ = "the attention of a snapshot has another range";
    return;
  }
  if (part != nullptr) {
    attention_.Follow(*own.attention, *part);
    bytes -= part->HeldBytes();
  }
  own.in_page = bytes > 0;
}

void RecurrentReference::set_snapshots(bool any) {
  snapshots_ = any;
  attention_.set_snapshots(any);
}

}  // namespace kvcache::testing
