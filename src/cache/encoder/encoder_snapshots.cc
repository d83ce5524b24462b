#include "cache/encoder/encoder_snapshots.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache {

EncoderOutput EncoderSnapshots::OutputIn(SequenceId sequence, Position begin, Position end) const {
  const EncoderOutput& output = parts_.outputs[Index(sequence)];
  return output.position >= begin && output.position < end ? output : EncoderOutput{};
}

Result<const EncoderSnapshot*> EncoderSnapshots::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const EncoderSnapshot*>(snapshot);
  if (own != nullptr && own->pool() == parts_.pool.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

Result<std::unique_ptr<Snapshot>> EncoderSnapshots::TakeSnapshot(SequenceId sequence,
                                                                 Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(sequence));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  if (end > parts_.lengths[Index(sequence)]) {
    return Invalid(StrCat("a snapshot of positions [", begin, ", ", end, ") of sequence ",
                          Index(sequence), ", which has ", parts_.lengths[Index(sequence)],
                          " tokens"));
  }
  if (!sequences_.CanResume(sequence, end)) {
    return Status(StatusCode::kUnsupported,
                  StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                         ", whose output there was replaced"));
  }
  if (begin == end) return std::unique_ptr<Snapshot>();
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot,
                           parts_.pool->Share(OutputIn(sequence, begin, end), begin, end));
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status EncoderSnapshots::ScheduleCaptures(SequenceId sequence, Position begin,
                                          std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(sequence));
  const std::size_t scheduled = parts_.captures.of(sequence).lengths.size();
  KVCACHE_RETURN_IF_ERROR(
      CheckCaptures(sequence, parts_.lengths[Index(sequence)], scheduled, begin, lengths));
  return parts_.captures.Schedule(sequence, begin, lengths);
}

Result<std::vector<std::unique_ptr<Snapshot>>> EncoderSnapshots::TakeCaptures(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(sequence));
  auto& schedule = parts_.captures.of(sequence);
  std::vector<std::unique_ptr<Snapshot>> result;
  try {
    result.resize(schedule.lengths.size());
  } catch (const std::bad_alloc&) {
    return NoMemoryForCaptures();
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Position begin = schedule.BeginOf(i);
    const Position end = schedule.lengths[i];
    if (schedule.taken[i] == nullptr && end <= parts_.lengths[Index(sequence)] &&
        sequences_.CanResume(sequence, end)) {
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
  if (parts_.CheckKnown(sequence).ok()) parts_.captures.Cancel(sequence);
}

Status EncoderSnapshots::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) const {
  KVCACHE_RETURN_IF_ERROR(sequences_.CheckRemove(sequence, 0, kEndOfSequence));
  const EncoderSnapshot* own = nullptr;
  if (snapshot != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(own, OwnSnapshot(snapshot));
  }
  const Position max = own == nullptr ? parts_.lengths[Index(sequence)] : own->end();
  if (target < 0 || target > max) {
    return Invalid(StrCat("restoring sequence ", Index(sequence), " to ", target,
                          " tokens; must be in [0, ", max, "]"));
  }
  const bool has_output = own != nullptr && own->HasOutputBefore(target);
  const Position kept = own == nullptr ? target : std::min(target, own->begin());
  if (parts_.lengths[Index(sequence)] < kept) {
    return {
        StatusCode::kUnsupported,
        StrCat("the snapshot begins at ", own->begin(), ", and sequence ", Index(sequence), " has ",
               parts_.lengths[Index(sequence)], " tokens; restore what lies between first")};
  }
  if (has_output) return parts_.pool->CheckShapes(*own);
  if (sequences_.CanResume(sequence, kept)) return Status::Ok();
  return {StatusCode::kUnsupported, StrCat("sequence ", Index(sequence), " cannot go back to ",
                                           kept, ": an output there was replaced")};
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
  KVCACHE_RETURN_IF_ERROR(parts_.pool->MakeRoom(held, own));
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
  (void)sequences_.Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  return std::move(status).WithContext("restoring a snapshot");
}

void EncoderSnapshots::FinishRestore() {
  const auto [sequence, begin, target, with_snapshot, reuses, output] =
      std::exchange(restoring_, {});
  pass_.End();
  if (!with_snapshot) {
    (void)sequences_.Remove(sequence, target, kEndOfSequence).ok();  // never fails
    return;
  }
  (void)sequences_.Remove(sequence, begin, kEndOfSequence).ok();  // never fails
  sequences_.Replace(sequence, output, target);
}

bool EncoderSnapshots::AbandonRestore() {
  const Restoring abandoned = std::exchange(restoring_, {});
  if (abandoned.output.entry != EncoderOutput::kNone)
    parts_.entries.Release(abandoned.output.entry);
  return !abandoned.reuses;
}

Status EncoderSnapshots::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  return CheckNeighbors(parent, child);
}

Result<std::unique_ptr<Snapshot>> EncoderSnapshots::MergeSnapshots(
    std::unique_ptr<Snapshot>& parent, std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  auto& first = static_cast<EncoderSnapshot&>(*parent);
  auto& second = static_cast<EncoderSnapshot&>(*child);
  if (!second.HasOutputBefore(second.end())) parts_.pool->Swap(first, second);
  second.SetRange(first.begin(), second.end());
  parent.reset();
  return std::move(child);
}

Result<SnapshotParts> EncoderSnapshots::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                      Position position) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  KVCACHE_ASSIGN_OR_RETURN(auto first, parts_.pool->Share({}, snapshot->begin(), position));
  auto& whole = static_cast<EncoderSnapshot&>(*snapshot);
  if (whole.HasOutputBefore(position)) parts_.pool->Swap(*first, whole);
  whole.SetRange(position, whole.end());
  SnapshotParts parts;
  parts.first = std::move(first);
  parts.second = std::move(snapshot);
  return parts;
}

Status EncoderSnapshots::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  return parts_.pool->Materialize(static_cast<EncoderSnapshot&>(snapshot));
}

std::string EncoderSnapshots::Identity() const {
  return IdentityText("encoder", parts_.storage, parts_.options.keys_identity);
}

Result<std::string> EncoderSnapshots::Fingerprint() const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  return WithoutBadAlloc([&]() -> Result<std::string> {
    return Identity() + "\n" + parts_.storage.layers().ShapesText();
  });
}

Result<std::int64_t> EncoderSnapshots::ExportSize(const Snapshot& snapshot) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Result<SnapshotHeader> EncoderSnapshots::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const EncoderSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kEncoder;
  header.begin = own->begin();
  header.end = own->end();
  header.fingerprint = Identity();
  KVCACHE_RETURN_IF_ERROR(parts_.pool->Describe(*own, header));
  return header;
}

Status EncoderSnapshots::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, BeginExport(header, bytes));
    std::fill(payload.begin(), payload.end(), std::byte{0});
    return parts_.pool->CopyOut(static_cast<const EncoderSnapshot&>(snapshot), header, payload);
  });
}

Result<std::unique_ptr<Snapshot>> EncoderSnapshots::Import(std::span<const std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> EncoderSnapshots::ImportChecked(
    std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
  const SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(CheckOrigin(header, SnapshotKind::kEncoder, Identity()));
  KVCACHE_RETURN_IF_ERROR(CheckLayers(header.layers, parts_.storage));
  const bool sane = header.numbers.size() == 3 && header.ranges.empty() && header.numbers[0] >= 0 &&
                    header.numbers[0] <= kMaxCells && header.numbers[1] >= 0 &&
                    header.numbers[1] < kEndOfSequence && header.numbers[2] >= 0 &&
                    header.numbers[2] <= kEndOfSequence;
  if (!sane) return Status(StatusCode::kCorrupt, "snapshot bytes: the output is impossible");
  EncoderOutput output;
  output.tokens = static_cast<std::int32_t>(header.numbers[0]);
  output.position = static_cast<Position>(header.numbers[1]);
  output.first_gone = static_cast<Position>(header.numbers[2]);
  if (output.tokens > 0 && (output.position < header.begin || output.position >= header.end)) {
    return Status(StatusCode::kCorrupt, "snapshot bytes: the output belongs to another range");
  }
  if (output.tokens > parts_.options.max_tokens) {
    return Invalid(StrCat("the snapshot's output has ", output.tokens, " tokens; the cache has ",
                          "room for ", parts_.options.max_tokens));
  }
  KVCACHE_RETURN_IF_ERROR(CheckPayload(header, RoundUp(output.tokens, kCellTile)));
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot,
                           parts_.pool->MakeFrom(header, output, bytes.subspan(read.size)));
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status EncoderSnapshots::CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                                     std::span<const KvShape> layers) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    if (header.numbers[0] != tokens) {
      return {StatusCode::kCorrupt, StrCat("the snapshot's output has ", header.numbers[0],
                                           " tokens; must have ", tokens)};
    }
    for (std::size_t i = 0; i < std::max(layers.size(), header.layers.size()); ++i) {
      const KvShape expected = i < layers.size() ? layers[i] : KvShape{};
      const KvShape shape = i < header.layers.size() ? header.layers[i].shape : KvShape{};
      if (shape == expected) continue;
      return {StatusCode::kCorrupt,
              StrCat("layer ", i, " of the snapshot's output has another shape than the model's")};
    }
    return Status::Ok();
  });
}

void EncoderSnapshots::SetMaterializeHook(const MaterializeHook& hook) {
  if (parts_.pool != nullptr) parts_.pool->SetHook(hook);
}

std::int64_t EncoderSnapshots::SnapshotBytes() const {
  return parts_.pool == nullptr ? 0 : parts_.pool->bytes();
}

std::int64_t EncoderSnapshots::SpareBytes() const {
  return parts_.pool == nullptr ? 0 : parts_.pool->memory().spare_bytes();
}

void EncoderSnapshots::LimitSpareBytes(std::int64_t max_bytes) {
  if (parts_.pool != nullptr) parts_.pool->memory().Limit(max_bytes);
}

}  // namespace kvcache
