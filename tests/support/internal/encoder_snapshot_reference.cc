// The snapshots of the encoder's reference model: by definition, the outputs themselves.
#include <algorithm>
#include <utility>

#include "support/internal/encoder_reference.h"

namespace kvcache::testing {

struct EncoderReference::Kept : ReferenceSnapshot {
  using ReferenceSnapshot::ReferenceSnapshot;
  Shared output;  // null: none belongs to a token of the range
  Position position = 0;
  Position first_gone = kEndOfSequence;
  bool copied = false;

  static const Kept& Of(const ReferenceSnapshot& snapshot) {
    return dynamic_cast<const Kept&>(snapshot);
  }
  void Take(const Kept& from) {
    output = from.output;
    position = from.position;
    first_gone = from.first_gone;
    copied = from.copied;
  }
};

StatusCode EncoderReference::CheckSnapshot(int sequence, Position begin, Position end) const {
  if (!Known(sequence) || begin < 0 || end < begin || end > lengths_[sequence]) {
    return StatusCode::kInvalidArgument;
  }
  return CanResume(sequence, end) ? StatusCode::kOk : StatusCode::kUnsupported;
}

ReferenceSnapshotPtr EncoderReference::TakeSnapshot(int sequence, Position begin, Position end) {
  if (begin == end) return nullptr;
  auto snapshot = std::make_shared<Kept>(begin, end);
  const Position position = positions_[sequence];
  if (outputs_[sequence] != nullptr && position >= begin && position < end) {
    snapshot->output = outputs_[sequence];
    snapshot->position = position;
    snapshot->first_gone = first_gone_[sequence];
  }
  return snapshot;
}

StatusCode EncoderReference::CheckRestore(int sequence, const ReferenceSnapshot* snapshot,
                                          Position target) const {
  if (!Known(sequence) || transactions_.Has(sequence) || target < 0 ||
      target > (snapshot == nullptr ? lengths_[sequence] : snapshot->end)) {
    return StatusCode::kInvalidArgument;
  }
  const Position kept = snapshot == nullptr ? target : std::min(target, snapshot->begin);
  const bool has_output = snapshot != nullptr && Kept::Of(*snapshot).output != nullptr &&
                          Kept::Of(*snapshot).position < target;
  const bool reachable = kept <= lengths_[sequence] && (has_output || CanResume(sequence, kept));
  return reachable ? StatusCode::kOk : StatusCode::kUnsupported;
}

void EncoderReference::Restore(int sequence, const ReferenceSnapshot* snapshot, Position target) {
  const Position kept = snapshot == nullptr ? target : std::min(target, snapshot->begin);
  Remove(sequence, kept, kEndOfSequence);
  if (snapshot == nullptr) return;
  const Kept& own = Kept::Of(*snapshot);
  if (own.output != nullptr && own.position < target) {
    outputs_[sequence] = own.copied ? std::make_shared<Output>(*own.output) : own.output;
    positions_[sequence] = own.position;
    first_gone_[sequence] = own.first_gone;
  }
  lengths_[sequence] = target;
  captures_[sequence] = {};
}

ReferenceSnapshotPtr EncoderReference::Merge(const ReferenceSnapshotPtr& parent,
                                             const ReferenceSnapshotPtr& child) {
  auto merged = std::make_shared<Kept>(parent->begin, child->end);
  merged->Take(Kept::Of(Kept::Of(*child).output != nullptr ? *child : *parent));
  return merged;
}

std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> EncoderReference::Split(
    const ReferenceSnapshotPtr& snapshot, Position position) {
  auto first = std::make_shared<Kept>(snapshot->begin, position);
  auto second = std::make_shared<Kept>(position, snapshot->end);
  const Kept& own = Kept::Of(*snapshot);
  if (own.output != nullptr) (own.position < position ? first : second)->Take(own);
  return {first, second};
}

StatusCode EncoderReference::CheckSchedule(int sequence, Position begin,
                                           const std::vector<Position>& lengths) const {
  if (!Known(sequence) || !captures_[sequence].lengths.empty() ||
      (begin != kEachFromZero && begin < lengths_[sequence])) {
    return StatusCode::kInvalidArgument;
  }
  Position last = std::max(begin, lengths_[sequence]) - 1;
  for (const Position length : lengths) {
    if (length <= last || length == kEndOfSequence) return StatusCode::kInvalidArgument;
    last = length;
  }
  return StatusCode::kOk;
}

void EncoderReference::Schedule(int sequence, Position begin,
                                const std::vector<Position>& lengths) {
  captures_[sequence] = {lengths, std::vector<ReferenceSnapshotPtr>(lengths.size()), begin};
}

void EncoderReference::CaptureBeforePut(int sequence) {
  Captures& captures = captures_[sequence];
  if (outputs_[sequence] == nullptr || positions_[sequence] >= notes_[sequence]) return;
  for (std::size_t i = 0; i < captures.lengths.size(); ++i) {
    const Position begin = BeginOf(captures.begin, captures.lengths, i);
    const Position end = captures.lengths[i];
    const Position position = positions_[sequence];
    if (position < begin || position >= end || notes_[sequence] < end) continue;
    if (captures.taken[i] == nullptr) captures.taken[i] = TakeSnapshot(sequence, begin, end);
  }
}

void EncoderReference::TruncateCaptures(int sequence, Position length) {
  Captures& captures = captures_[sequence];
  if (captures.begin > length) captures = {};
  for (std::size_t i = 0; i < captures.lengths.size(); ++i) {
    if (captures.lengths[i] > length) captures.taken[i] = nullptr;
  }
}

std::vector<ReferenceSnapshotPtr> EncoderReference::TakeCaptures(int sequence) {
  Captures captures = std::exchange(captures_[sequence], {});
  for (std::size_t i = 0; i < captures.lengths.size(); ++i) {
    const Position begin = BeginOf(captures.begin, captures.lengths, i);
    const Position end = captures.lengths[i];
    if (captures.taken[i] != nullptr || end > lengths_[sequence]) continue;
    if (CanResume(sequence, end)) captures.taken[i] = TakeSnapshot(sequence, begin, end);
  }
  return captures.taken;
}

void EncoderReference::Follow(ReferenceSnapshot& snapshot, const Snapshot& real) {
  Kept& own = dynamic_cast<Kept&>(snapshot);
  if (own.output == nullptr || own.copied || real.HeldCells() > 0) return;
  own.copied = true;
  own.output = std::make_shared<Output>(*own.output);
}

}  // namespace kvcache::testing
