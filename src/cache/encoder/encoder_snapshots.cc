#include "cache/encoder/encoder_snapshots.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/encoder/encoder_cache_impl.h"

namespace kvcache {

EncoderOutput EncoderSnapshots::OutputIn(SequenceId sequence, Position begin, Position end) const {
  const EncoderOutput& output = parts_.outputs[Index(sequence)];
  return output.position >= begin && output.position < end ? output : EncoderOutput{};
}

bool EncoderSnapshots::Owns(const Snapshot& snapshot) const {
  const auto* const own = dynamic_cast<const EncoderSnapshot*>(&snapshot);
  return own != nullptr && own->pool() == parts_.pool.get();
}

Result<SnapshotPtr> EncoderSnapshots::TakeSnapshot(SequenceId sequence, Position begin,
                                                   Position end) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  KVCACHE_RETURN_IF_ERROR(
      CheckSnapshotRange(sequence, begin, end, parts_.lengths[Index(sequence)]));
  if (!cache_.CanResume(sequence, end)) {
    return Unsupported(StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                              ", whose output there was replaced"));
  }
  if (begin == end) return SnapshotPtr();
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot,
                           parts_.pool->Share(OutputIn(sequence, begin, end), begin, end));
  return SnapshotPtr(std::move(snapshot));
}

Status EncoderSnapshots::ScheduleCaptures(SequenceId sequence, Position begin,
                                          std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  const std::size_t scheduled = parts_.captures.of(sequence).lengths.size();
  KVCACHE_RETURN_IF_ERROR(
      CheckCaptures(sequence, parts_.lengths[Index(sequence)], scheduled, begin, lengths));
  return parts_.captures.Schedule(sequence, begin, lengths);
}

Result<std::vector<SnapshotPtr>> EncoderSnapshots::TakeCaptures(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(sequence));
  auto& schedule = parts_.captures.of(sequence);
  std::vector<SnapshotPtr> result;
  KVCACHE_RETURN_IF_ERROR(
      Guarded(kNoMemoryForCaptures, [&] { result.resize(schedule.lengths.size()); }));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Position begin = schedule.BeginOf(i);
    const Position end = schedule.lengths[i];
    if (schedule.taken[i] == nullptr && end <= parts_.lengths[Index(sequence)] &&
        cache_.CanResume(sequence, end)) {
      KVCACHE_ASSIGN_OR_RETURN(result[i], TakeSnapshot(sequence, begin, end));
    }
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (schedule.taken[i] != nullptr) result[i] = std::move(schedule.taken[i]);
  }
  parts_.captures.Cancel(sequence);
  return result;
}

void EncoderSnapshots::CancelCaptures(SequenceId sequence) {
  if (parts_.storage.CheckKnown(sequence).ok()) parts_.captures.Cancel(sequence);
}

Status EncoderSnapshots::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) const {
  KVCACHE_RETURN_IF_ERROR(cache_.CheckRemove(sequence, 0, kEndOfSequence));
  if (snapshot != nullptr) KVCACHE_RETURN_IF_ERROR(CheckOwn(snapshot));
  const auto* const own = static_cast<const EncoderSnapshot*>(snapshot);
  const Position length = parts_.lengths[Index(sequence)];
  KVCACHE_RETURN_IF_ERROR(CheckTarget(sequence, target, own == nullptr ? length : own->end()));
  const bool has_output = own != nullptr && own->HasOutputBefore(target);
  const Position kept = own == nullptr ? target : std::min(target, own->begin());
  if (length < kept) {
    return Unsupported(StrCat("the snapshot begins at ", own->begin(), ", and sequence ",
                              Index(sequence), " has ", length,
                              " tokens; restore what lies between first"));
  }
  if (has_output) return parts_.pool->CheckShapes(*own);
  if (cache_.CanResume(sequence, kept)) return Status::Ok();
  return Unsupported(StrCat("sequence ", Index(sequence), " cannot go back to ", kept,
                            ": an output there was replaced"));
}

Status EncoderSnapshots::BeginRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  const auto* const own = static_cast<const EncoderSnapshot*>(snapshot);
  restoring_ = {.sequence = sequence, .target = target};
  if (own == nullptr) return Status::Ok();
  restoring_.with_snapshot = true;
  restoring_.begin = std::min(target, own->begin());
  if (!own->HasOutputBefore(target)) return Status::Ok();
  restoring_.output = own->output();
  if (own->output().entry != EncoderOutput::kNone) {
    parts_.entries.Share(own->output().entry);
    return Status::Ok();
  }
  const std::int32_t held = parts_.outputs[Index(sequence)].entry;
  KVCACHE_RETURN_IF_ERROR(parts_.pool->EnsureCapacity(held, own));
  if (parts_.entries.free_cells() == 0) {
    pass_.End();
    parts_.Drop(sequence);
    restoring_.reuses = true;
  }
  restoring_.output.entry = parts_.entries.Take(Index(sequence));
  Status status = parts_.pool->CopyIn(*own, restoring_.output.entry);
  if (status.ok()) return status;
  if (AbandonRestore()) return std::move(status).WithContext("restoring a snapshot");
  restoring_.reuses = true;
  (void)cache_.Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  return std::move(status).WithContext("restoring a snapshot");
}

void EncoderSnapshots::FinishRestore() {
  const auto [sequence, begin, target, with_snapshot, reuses, output] =
      std::exchange(restoring_, {});
  pass_.End();
  if (!with_snapshot) {
    (void)cache_.Remove(sequence, target, kEndOfSequence).ok();  // never fails
    return;
  }
  (void)cache_.Remove(sequence, begin, kEndOfSequence).ok();  // never fails
  cache_.Replace(sequence, output, target);
}

bool EncoderSnapshots::AbandonRestore() {
  const Restoring abandoned = std::exchange(restoring_, {});
  if (abandoned.output.entry != EncoderOutput::kNone)
    parts_.entries.Release(abandoned.output.entry);
  return !abandoned.reuses;
}

Result<SnapshotPtr> EncoderSnapshots::Merge(SnapshotPtr& parent, SnapshotPtr& child) {
  auto& first = static_cast<EncoderSnapshot&>(*parent);
  auto& second = static_cast<EncoderSnapshot&>(*child);
  if (!second.HasOutputBefore(second.end())) parts_.pool->Swap(first, second);
  second.SetRange(first.begin(), second.end());
  parent.reset();
  return std::move(child);
}

Result<SnapshotParts> EncoderSnapshots::Split(SnapshotPtr& snapshot, Position position) {
  KVCACHE_ASSIGN_OR_RETURN(auto first, parts_.pool->Share({}, snapshot->begin(), position));
  auto& whole = static_cast<EncoderSnapshot&>(*snapshot);
  if (whole.HasOutputBefore(position)) parts_.pool->Swap(*first, whole);
  whole.SetRange(position, whole.end());
  SnapshotParts parts;
  parts.first = std::move(first);
  parts.second = std::move(snapshot);
  return parts;
}

Status EncoderSnapshots::MaterializeOwn(Snapshot& snapshot) {
  return parts_.pool->Materialize(static_cast<EncoderSnapshot&>(snapshot));
}

Result<std::string> EncoderSnapshots::Identity() const {
  return IdentityText("encoder", parts_.storage, parts_.options.keys_identity);
}

Status EncoderSnapshots::Describe(const Snapshot& snapshot, SnapshotHeader& header) const {
  return parts_.pool->Describe(static_cast<const EncoderSnapshot&>(snapshot), header);
}

Status EncoderSnapshots::CopyOut(const Snapshot& snapshot, const SnapshotHeader& header,
                                 std::span<std::byte> payload) {
  std::fill(payload.begin(), payload.end(), std::byte{0});
  return parts_.pool->CopyOut(static_cast<const EncoderSnapshot&>(snapshot), header, payload);
}

Result<SnapshotPtr> EncoderSnapshots::CopyIn(const SnapshotHeader& header,
                                             std::span<const std::byte> payload) {
  KVCACHE_RETURN_IF_ERROR(CheckLayers(header.layers, parts_.storage));
  const bool sane = header.numbers.size() == 3 && header.ranges.empty() && header.numbers[0] >= 0 &&
                    header.numbers[0] <= kMaxCells && header.numbers[1] >= 0 &&
                    header.numbers[1] < kEndOfSequence && header.numbers[2] >= 0 &&
                    header.numbers[2] <= kEndOfSequence;
  if (!sane) return CorruptBytes("the output is impossible");
  EncoderOutput output;
  output.tokens = static_cast<std::int32_t>(header.numbers[0]);
  output.position = static_cast<Position>(header.numbers[1]);
  output.first_gone = static_cast<Position>(header.numbers[2]);
  if (output.tokens > 0 && (output.position < header.begin || output.position >= header.end)) {
    return CorruptBytes("the output belongs to another range");
  }
  if (output.tokens > parts_.options.max_tokens) {
    return Invalid(StrCat("the snapshot's output has ", output.tokens, " tokens; the cache has ",
                          "room for ", parts_.options.max_tokens));
  }
  KVCACHE_RETURN_IF_ERROR(CheckPayload(header, RoundUp(output.tokens, kCellTile)));
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->MakeFrom(header, output, payload));
  return SnapshotPtr(std::move(snapshot));
}

Status EncoderSnapshots::CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                                     std::span<const KvShape> layers) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  return Guarded("no memory for the description of a snapshot", [&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    if (header.numbers[0] != tokens) {
      return Corrupt(
          StrCat("the snapshot's output has ", header.numbers[0], " tokens; must have ", tokens));
    }
    for (std::size_t i = 0; i < std::max(layers.size(), header.layers.size()); ++i) {
      const KvShape expected = i < layers.size() ? layers[i] : KvShape{};
      const KvShape shape = i < header.layers.size() ? header.layers[i].shape : KvShape{};
      if (shape == expected) continue;
      return Corrupt(
          StrCat("layer ", i, " of the snapshot's output has another shape than the model's"));
    }
    return Status::Ok();
  });
}

}  // namespace kvcache
