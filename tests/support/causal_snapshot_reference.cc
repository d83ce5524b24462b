// The snapshots of the causal reference model: by definition, the tokens themselves.
#include <algorithm>
#include <set>
#include <utility>

#include "support/causal_reference.h"

namespace kvcache::testing {
namespace {

using Sequence = ReferenceCausalCache::Sequence;

struct CausalSnapshotReference : ReferenceSnapshot {
  using ReferenceSnapshot::ReferenceSnapshot;
  Sequence tokens;
  std::set<Position> copied;  // positions that the real snapshot has in host memory

  Position first() const { return tokens.empty() ? end : tokens.begin()->first; }
};

const CausalSnapshotReference& Own(const ReferenceSnapshot& snapshot) {
  return dynamic_cast<const CausalSnapshotReference&>(snapshot);
}

// Returns the tokens at positions [begin, end).
Sequence Slice(const Sequence& tokens, Position begin, Position end) {
  return Sequence(tokens.lower_bound(begin), tokens.lower_bound(std::max(begin, end)));
}

}  // namespace

StatusCode CausalReference::CheckSnapshot(int sequence, Position begin, Position end) const {
  if (!model_.Known(sequence) || begin < 0 || end < begin || end > model_.length(sequence)) {
    return StatusCode::kInvalidArgument;
  }
  const bool complete = causal_.window == 0 || model_.CanResume(sequence, end);
  return complete ? StatusCode::kOk : StatusCode::kUnsupported;
}

ReferenceSnapshotPtr CausalReference::TakeSnapshot(int sequence, Position begin, Position end) {
  auto snapshot = std::make_shared<CausalSnapshotReference>(begin, end);
  const Position first = causal_.window > 0 ? std::max(0, end - causal_.window) : begin;
  snapshot->tokens = Slice(model_.sequence(sequence), first, end);
  if (begin == end && snapshot->tokens.empty()) return nullptr;
  return snapshot;
}

StatusCode CausalReference::CheckRestore(int sequence, const ReferenceSnapshot* snapshot,
                                         Position target) const {
  if (!model_.Known(sequence) || model_.transactions().Has(sequence)) {
    return StatusCode::kInvalidArgument;
  }
  const Position length = model_.length(sequence);
  if (target < 0 || target > (snapshot == nullptr ? length : snapshot->end)) {
    return StatusCode::kInvalidArgument;
  }
  bool reachable = false;
  if (snapshot == nullptr || (causal_.window == 0 && target <= snapshot->begin)) {
    reachable = model_.CanResume(sequence, target);
  } else if (causal_.window > 0) {
    reachable = Own(*snapshot).first() <= std::max(0, target - causal_.window + 1);
  } else {
    reachable = length >= snapshot->begin;
  }
  return reachable ? CheckRoom(sequence, snapshot, target) : StatusCode::kUnsupported;
}

// Tokens in host memory need new cells. What the restore replaces may be dropped for them, but not
// what the snapshot itself still shares.
StatusCode CausalReference::CheckRoom(int sequence, const ReferenceSnapshot* snapshot,
                                      Position target) const {
  if (snapshot == nullptr) return StatusCode::kOk;
  const CausalSnapshotReference& own = Own(*snapshot);
  if (causal_.window == 0 && target <= own.begin) return StatusCode::kOk;
  std::int64_t needed = 0;
  Sequence shared;
  for (const auto& [position, token] : own.tokens) {
    if (own.copied.count(position) == 0) shared[position] = token;
    needed += position < target && own.copied.count(position) != 0;
  }
  std::vector<Sequence> kept = model_.all();
  kept[sequence] = causal_.window > 0 ? Sequence() : Slice(kept[sequence], 0, own.begin);
  return needed + model_.CellsWith(kept, shared) > cells_ && needed > 0 ? StatusCode::kCacheFull
                                                                        : StatusCode::kOk;
}

void CausalReference::Restore(int sequence, const ReferenceSnapshot* snapshot, Position target) {
  if (snapshot == nullptr || (causal_.window == 0 && target <= snapshot->begin)) {
    return Remove(sequence, target, kEndOfSequence);
  }
  const CausalSnapshotReference& own = Own(*snapshot);
  Sequence tokens;
  if (causal_.window == 0) tokens = Slice(model_.sequence(sequence), 0, own.begin);
  for (const auto& [position, token] : Slice(own.tokens, 0, target)) {
    const bool copied = own.copied.count(position) != 0;
    tokens[position] = copied ? std::make_shared<ReferenceToken>(*token) : token;
  }
  const bool late = causal_.window > 0 && !tokens.empty() && tokens.begin()->first > 0;
  captures_[sequence] = {};
  model_.Replace(sequence, std::move(tokens), late);
}

ReferenceSnapshotPtr CausalReference::Merge(const ReferenceSnapshotPtr& parent,
                                            const ReferenceSnapshotPtr& child) {
  auto merged = std::make_shared<CausalSnapshotReference>(parent->begin, child->end);
  const CausalSnapshotReference& second = Own(*child);
  merged->tokens = second.tokens;
  merged->copied = second.copied;
  if (causal_.window == 0) {
    const CausalSnapshotReference& first = Own(*parent);
    merged->tokens.insert(first.tokens.begin(), first.tokens.end());
    merged->copied.insert(first.copied.begin(), first.copied.end());
  }
  return merged;
}

std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> CausalReference::Split(
    const ReferenceSnapshotPtr& snapshot, Position position) {
  if (causal_.window > 0) return {nullptr, snapshot};
  const CausalSnapshotReference& own = Own(*snapshot);
  auto first = std::make_shared<CausalSnapshotReference>(own.begin, position);
  auto second = std::make_shared<CausalSnapshotReference>(position, own.end);
  first->tokens = Slice(own.tokens, own.begin, position);
  second->tokens = Slice(own.tokens, position, own.end);
  for (const Position p : own.copied) (p < position ? first : second)->copied.insert(p);
  return {first, second};
}

StatusCode CausalReference::CheckSchedule(int sequence, Position begin,
                                          const std::vector<Position>& lengths) const {
  if (!model_.Known(sequence) || !captures_[sequence].lengths.empty() ||
      (begin != kEachFromZero && begin < model_.length(sequence))) {
    return StatusCode::kInvalidArgument;
  }
  Position last = std::max(begin, model_.length(sequence)) - 1;
  for (const Position length : lengths) {
    if (length <= last || length == kEndOfSequence) return StatusCode::kInvalidArgument;
    last = length;
  }
  return StatusCode::kOk;
}

void CausalReference::Schedule(int sequence, Position begin, const std::vector<Position>& lengths) {
  if (lengths.empty()) return;
  captures_[sequence] = {lengths, std::vector<ReferenceSnapshotPtr>(lengths.size()), begin, 0};
}

std::vector<ReferenceSnapshotPtr> CausalReference::TakeCaptures(int sequence) {
  return std::exchange(captures_[sequence], {}).taken;
}

void CausalReference::Capture(int sequence, const Sequence& before) {
  Captures& captures = captures_[sequence];
  for (std::size_t& i = captures.next; i < captures.lengths.size(); ++i) {
    const Position end = captures.lengths[i];
    if (end > model_.length(sequence)) break;
    const Position begin = BeginOf(captures.begin, captures.lengths, i);
    auto snapshot = std::make_shared<CausalSnapshotReference>(begin, end);
    const Position first = causal_.window > 0 ? std::max(0, end - causal_.window) : begin;
    snapshot->tokens = Slice(model_.sequence(sequence), first, end);
    const Sequence evicted = Slice(before, first, end);
    snapshot->tokens.insert(evicted.begin(), evicted.end());
    if (begin < end || !snapshot->tokens.empty()) captures.taken[i] = snapshot;
  }
}

void CausalReference::TruncateCaptures(int sequence, Position length) {
  Captures& captures = captures_[sequence];
  while (captures.next > 0 && captures.lengths[captures.next - 1] > length) {
    captures.taken[--captures.next] = nullptr;
  }
  if (captures.begin > length) captures = {};
}

// All cells of a snapshot are materialised together. From then on its tokens are copies.
void CausalReference::Follow(ReferenceSnapshot& snapshot, const Snapshot& real) {
  auto& own = dynamic_cast<CausalSnapshotReference&>(snapshot);
  if (real.HeldCells() > 0) return;
  for (auto& [position, token] : own.tokens) {
    if (!own.copied.insert(position).second) continue;
    token = std::make_shared<ReferenceToken>(*token);
  }
}

}  // namespace kvcache::testing
