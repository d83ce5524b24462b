#include "cache/recurrent/recurrent_snapshots.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/recurrent/recurrent_cache_impl.h"

namespace kvcache {
namespace {

// Returns whether the attention of the two snapshots joins: the later one begins where the earlier
// one ends. Otherwise the later one has all that is needed, or there is a gap.
bool AttentionJoins(const RecurrentSnapshot& parent, const RecurrentSnapshot& child) {
  return parent.attention != nullptr && child.attention != nullptr &&
         parent.attention->end() == child.attention->begin();
}

}  // namespace

bool RecurrentSnapshots::Owns(const Snapshot& snapshot) const {
  const auto* const own = dynamic_cast<const RecurrentSnapshot*>(&snapshot);
  return own != nullptr && own->pool() == parts_.pool.get();
}

// The attention checks the arguments. At the beginning there is no state to keep.
Result<SnapshotPtr> RecurrentSnapshots::TakeSnapshot(SequenceId sequence, Position begin,
                                                     Position end) {
  KVCACHE_ASSIGN_OR_RETURN(auto attention,
                           parts_.attention.own_snapshots().TakeSnapshot(sequence, begin, end));
  if (end == 0) return SnapshotPtr();
  const StatePoint state = parts_.states.Find(sequence, end);
  if (!state.known()) {
    return Unsupported(StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                              ", whose nearest recurrent state below is after ",
                              parts_.states.Newest(sequence, end), " tokens"));
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->Make(begin, end));
  parts_.pool->Hold(*snapshot, state);
  snapshot->attention = std::move(attention);
  return SnapshotPtr(std::move(snapshot));
}

Status RecurrentSnapshots::ScheduleCaptures(SequenceId sequence, Position begin,
                                            std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(
      parts_.attention.own_snapshots().ScheduleCaptures(sequence, begin, lengths));
  Status status = parts_.captures.Schedule(sequence, begin, lengths);
  if (!status.ok()) parts_.attention.own_snapshots().CancelCaptures(sequence);
  return status;
}

// A capture without its state is worth nothing: the pass that reached it broke off.
Result<std::vector<SnapshotPtr>> RecurrentSnapshots::TakeCaptures(SequenceId sequence) {
  KVCACHE_ASSIGN_OR_RETURN(auto result, parts_.attention.own_snapshots().TakeCaptures(sequence));
  for (std::size_t i = 0; i < result.size(); ++i) {
    RecurrentCaptures::OwnPtr snapshot = parts_.captures.Take(sequence, i);
    if (snapshot != nullptr) snapshot->attention = std::move(result[i]);
    result[i] = std::move(snapshot);
  }
  parts_.captures.Cancel(sequence);
  return result;
}

void RecurrentSnapshots::CancelCaptures(SequenceId sequence) {
  if (!parts_.attention.PrepareRestore(sequence, 0).ok()) return;  // the sequence is unknown
  parts_.attention.own_snapshots().CancelCaptures(sequence);
  parts_.captures.Cancel(sequence);
}

// Checks a restore without a snapshot.
Status RecurrentSnapshots::CheckWithout(SequenceId sequence, Position target) const {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.own_snapshots().CheckRestore(sequence, nullptr, target));
  if (target == 0 || parts_.states.Find(sequence, target).known()) return Status::Ok();
  return Unsupported(StrCat("sequence ", Index(sequence), " has no recurrent state after ", target,
                            " tokens; the nearest below is after ",
                            parts_.states.Newest(sequence, target)));
}

Status RecurrentSnapshots::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                        Position target) const {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.CheckRemove(sequence, 0, kEndOfSequence));
  const std::string name = StrCat("sequence ", Index(sequence));
  if (snapshot == nullptr) return CheckWithout(sequence, target);
  KVCACHE_RETURN_IF_ERROR(CheckOwn(snapshot));
  const auto* const own = static_cast<const RecurrentSnapshot*>(snapshot);
  KVCACHE_RETURN_IF_ERROR(CheckTarget(sequence, target, own->end()));
  if (target != own->tokens()) {
    return Unsupported(StrCat("restoring ", name, " to ", target,
                              " tokens; the snapshot's recurrent state is after ", own->tokens(),
                              ", and restores at no other length"));
  }
  const Position held = own->attention == nullptr ? parts_.length(sequence) : own->attention->end();
  if (held < target) {
    return Unsupported(StrCat("restoring ", name, " to ", target, " tokens; there are keys of ",
                              held, " only; restore what lies between first"));
  }
  return parts_.attention.own_snapshots().CheckRestore(sequence, own->attention.get(), target);
}

// The state is staged first, because the attention may have to drop the sequence for its cells.
Status RecurrentSnapshots::BeginRestore(SequenceId sequence, const Snapshot* snapshot,
                                        Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  restoring_ = {.sequence = sequence, .target = target};
  const auto* const own = static_cast<const RecurrentSnapshot*>(snapshot);
  const Snapshot* const attention = own == nullptr ? nullptr : own->attention.get();
  if (own != nullptr) {
    auto cell = parts_.pool->Stage(*own);
    if (!cell.ok()) return std::move(cell).TakeStatus().WithContext("restoring a recurrent state");
    restoring_.state = {*cell, target};
    const bool window = parts_.options.attention.window > 0;
    const bool goes_back = attention == nullptr || (!window && target <= attention->begin());
    restoring_.kept = goes_back ? target : window ? 0 : attention->begin();
  }
  Status status = parts_.attention.own_snapshots().BeginRestore(sequence, attention, target);
  if (status.ok() || AbandonRestore()) return status;
  (void)cache_.Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  restoring_.emptied = true;
  return status;
}

void RecurrentSnapshots::FinishRestore() {
  const auto [sequence, state, target, kept, emptied] = std::exchange(restoring_, {});
  parts_.attention.own_snapshots().FinishRestore();
  pass_.EndStates();
  parts_.Unprepare(sequence);
  if (state.known()) {
    parts_.states.Replace(sequence, state, kept);
    parts_.attention.own_snapshots().CancelCaptures(sequence);
    parts_.captures.Cancel(sequence);
  } else {
    parts_.states.GoBack(sequence, target);
    parts_.captures.Truncate(sequence, target);
  }
}

bool RecurrentSnapshots::AbandonRestore() {
  const Restoring abandoned = std::exchange(restoring_, {});
  if (abandoned.state.known()) parts_.states.Drop(abandoned.state.cell);
  return parts_.attention.own_snapshots().AbandonRestore() && !abandoned.emptied;
}

Status RecurrentSnapshots::PrepareJoin(Snapshot& parent, Snapshot& child) {
  const auto& first = static_cast<const RecurrentSnapshot&>(parent);
  const auto& second = static_cast<const RecurrentSnapshot&>(child);
  if (!AttentionJoins(first, second)) return Status::Ok();
  return parts_.attention.own_snapshots().PrepareMerge(*first.attention, *second.attention);
}

Result<SnapshotPtr> RecurrentSnapshots::Merge(SnapshotPtr& parent, SnapshotPtr& child) {
  auto& first = static_cast<RecurrentSnapshot&>(*parent);
  auto& second = static_cast<RecurrentSnapshot&>(*child);
  if (AttentionJoins(first, second)) {
    KVCACHE_ASSIGN_OR_RETURN(second.attention, parts_.attention.own_snapshots().MergeSnapshots(
                                                   first.attention, second.attention));
  } else if (second.attention == nullptr) {
    second.attention = std::move(first.attention);
  }
  second.SetRange(first.begin(), second.end());
  parent.reset();
  return std::move(child);
}

Result<SnapshotParts> RecurrentSnapshots::Split(SnapshotPtr& snapshot, Position /*position*/) {
  SnapshotParts parts;
  parts.second = std::move(snapshot);
  return parts;
}

Status RecurrentSnapshots::MaterializeOwn(Snapshot& snapshot) {
  auto& own = static_cast<RecurrentSnapshot&>(snapshot);
  if (own.attention != nullptr)
    KVCACHE_RETURN_IF_ERROR(parts_.attention.own_snapshots().Materialize(*own.attention));
  return parts_.pool->Materialize(own);
}

Result<std::string> RecurrentSnapshots::Identity() const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string attention,
                           parts_.attention.own_snapshots().Fingerprint());
  std::string layers;
  for (const int layer : parts_.options.layers) layers += StrCat(layers.empty() ? "" : " ", layer);
  return StrCat("recurrent, layers ", layers.empty() ? "none" : layers, ", convolution ",
                parts_.options.conv_dim, " x ", parts_.options.conv_channels, ", state ",
                parts_.options.state_size, ", with ", attention);
}

Status RecurrentSnapshots::Describe(const Snapshot& snapshot, SnapshotHeader& header) const {
  const auto& own = static_cast<const RecurrentSnapshot&>(snapshot);
  header.numbers = {own.tokens()};
  std::int64_t attention = 0;
  if (own.attention != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(attention,
                             parts_.attention.own_snapshots().ExportSize(*own.attention));
  }
  header.parts = {attention};
  header.payload = attention + RoundUp(parts_.pool->StateBytes(), kSnapshotAlignment);
  return Status::Ok();
}

Status RecurrentSnapshots::CopyOut(const Snapshot& snapshot, const SnapshotHeader& header,
                                   std::span<std::byte> payload) {
  const auto& own = static_cast<const RecurrentSnapshot&>(snapshot);
  const auto attention = static_cast<std::size_t>(header.parts.front());
  if (own.attention != nullptr) {
    KVCACHE_RETURN_IF_ERROR(
        parts_.attention.own_snapshots().Export(*own.attention, payload.first(attention)));
  }
  const auto state = static_cast<std::size_t>(parts_.pool->StateBytes());
  const std::span<std::byte> rest = payload.subspan(attention + state);
  std::fill(rest.begin(), rest.end(), std::byte{0});
  return parts_.pool->CopyOut(own, payload.subspan(attention, state));
}

Result<SnapshotPtr> RecurrentSnapshots::CopyIn(const SnapshotHeader& header,
                                               std::span<const std::byte> payload) {
  const bool described = header.numbers.size() == 1 && header.parts.size() == 1 &&
                         header.ranges.empty() && header.layers.empty();
  if (!described || header.numbers[0] < 1 || header.numbers[0] > header.end) {
    return CorruptBytes("the recurrent state is impossible");
  }
  const std::int64_t state = RoundUp(parts_.pool->StateBytes(), kSnapshotAlignment);
  const std::int64_t size = header.payload - state;
  if (size < 0 || header.parts[0] != size) {
    return CorruptBytes(StrCat(header.payload, " bytes of attention and states; the attention has ",
                               header.parts[0], ", and the states must have ", state));
  }
  SnapshotPtr attention;
  if (size > 0) {
    auto imported =
        parts_.attention.own_snapshots().Import(payload.first(static_cast<std::size_t>(size)));
    if (!imported.ok()) return Status(imported.status()).WithContext("the attention's snapshot");
    attention = std::move(*imported);
    if (attention->end() > header.end || attention->begin() > header.numbers[0] ||
        attention->end() < header.numbers[0]) {
      return CorruptBytes("the attention is of another range than the state");
    }
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->Make(header.begin, header.end));
  KVCACHE_RETURN_IF_ERROR(
      parts_.pool->CopyIn(*snapshot,
                          payload.subspan(static_cast<std::size_t>(size),
                                          static_cast<std::size_t>(parts_.pool->StateBytes())),
                          static_cast<Position>(header.numbers[0])));
  snapshot->attention = std::move(attention);
  return SnapshotPtr(std::move(snapshot));
}

}  // namespace kvcache
