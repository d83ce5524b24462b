// The encoder cache's calls for snapshots (kvcache/snapshot.h).
#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "cache/encoder/encoder_cache_impl.h"
#include "cache/snapshot/snapshot_bytes.h"

namespace kvcache {

// A capture whose range is cut or that ends above the new length is taken back.
void EncoderCacheImpl::ChangeLength(SequenceId sequence, Position length) {
  lengths_[Index(sequence)] = std::min(lengths_[Index(sequence)], length);
  captures_.Truncate(sequence, length);
}

EncoderOutput EncoderCacheImpl::OutputIn(SequenceId sequence, Position begin, Position end) const {
  const Output& output = outputs_[Index(sequence)];
  return output.position >= begin && output.position < end ? output : Output{};
}

Result<const EncoderSnapshot*> EncoderCacheImpl::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const EncoderSnapshot*>(snapshot);
  if (own != nullptr && own->pool() == pool_.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

// The output that a Put replaces may be what a scheduled capture consists of.
Status EncoderCacheImpl::CaptureBeforePut(const Member& member) {
  const Output& output = outputs_[Index(member.sequence)];
  auto& schedule = captures_.of(member.sequence);
  if (output.entry == kNone || output.position >= member.position) return Status::Ok();
  for (std::size_t i = 0; i < schedule.lengths.size(); ++i) {
    const Position begin = schedule.BeginOf(i);
    const Position end = schedule.lengths[i];
    const bool has_output = output.position >= begin && output.position < end;
    if (!has_output || member.position < end || schedule.taken[i] != nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(schedule.taken[i], pool_->Share(output, begin, end));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Snapshot>> EncoderCacheImpl::TakeSnapshot(SequenceId sequence,
                                                                 Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  if (end > lengths_[Index(sequence)]) {
    return Invalid(StrCat("a snapshot of positions [", begin, ", ", end, ") of sequence ",
                          Index(sequence), ", which has ", lengths_[Index(sequence)], " tokens"));
  }
  if (!CanResume(sequence, end)) {
    return Status(StatusCode::kUnsupported,
                  StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                         ", whose output there was replaced"));
  }
  if (begin == end) return std::unique_ptr<Snapshot>();
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Share(OutputIn(sequence, begin, end), begin, end));
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status EncoderCacheImpl::ScheduleCaptures(SequenceId sequence, Position begin,
                                          std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  const std::size_t scheduled = captures_.of(sequence).lengths.size();
  KVCACHE_RETURN_IF_ERROR(
      CheckCaptures(sequence, lengths_[Index(sequence)], scheduled, begin, lengths));
  return captures_.Schedule(sequence, begin, lengths);
}

Result<std::vector<std::unique_ptr<Snapshot>>> EncoderCacheImpl::TakeCaptures(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence, storage_.options()));
  auto& schedule = captures_.of(sequence);
  std::vector<std::unique_ptr<Snapshot>> result;
  try {
    result.resize(schedule.lengths.size());
  } catch (const std::bad_alloc&) {
    return NoMemoryForCaptures();
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Position begin = schedule.BeginOf(i);
    const Position end = schedule.lengths[i];
    if (schedule.taken[i] == nullptr && end <= lengths_[Index(sequence)] &&
        CanResume(sequence, end)) {
      KVCACHE_ASSIGN_OR_RETURN(result[i], TakeSnapshot(sequence, begin, end));
    }
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (schedule.taken[i] != nullptr) result[i] = std::move(schedule.taken[i]);
  }
  captures_.Cancel(sequence);
  return result;
}

void EncoderCacheImpl::CancelCaptures(SequenceId sequence) {
  if (storage_.ready() && CheckSequence(sequence, storage_.options()).ok()) {
    captures_.Cancel(sequence);
  }
}

Status EncoderCacheImpl::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) const {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, 0, kEndOfSequence));
  const EncoderSnapshot* own = nullptr;
  if (snapshot != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(own, OwnSnapshot(snapshot));
  }
  const Position most = own == nullptr ? lengths_[Index(sequence)] : own->end();
  if (target < 0 || target > most) {
    return Invalid(StrCat("restoring sequence ", Index(sequence), " to ", target,
                          " tokens; must be in [0, ", most, "]"));
  }
  const bool has_output = own != nullptr && own->HasOutputBefore(target);
  const Position kept = own == nullptr ? target : std::min(target, own->begin());
  if (lengths_[Index(sequence)] < kept) {
    return {StatusCode::kUnsupported,
            StrCat("the snapshot begins at ", own->begin(), ", and sequence ", Index(sequence),
                   " has ", lengths_[Index(sequence)], " tokens; restore what lies between first")};
  }
  if (has_output) return pool_->CheckShapes(*own);
  if (CanResume(sequence, kept)) return Status::Ok();
  return {StatusCode::kUnsupported, StrCat("sequence ", Index(sequence), " cannot go back to ",
                                           kept, ": an output there was replaced")};
}

Status EncoderCacheImpl::BeginRestore(SequenceId sequence, const Snapshot* snapshot,
                                      Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  const auto* const own = static_cast<const EncoderSnapshot*>(snapshot);
  restoring_ = {.sequence = sequence, .target = target};
  if (own == nullptr) return Status::Ok();
  restoring_.with_snapshot = true;
  restoring_.begin = std::min(target, own->begin());
  if (!own->HasOutputBefore(target)) return Status::Ok();
  restoring_.output = own->output();
  if (own->output().entry != kNone) {
    entries_.Share(own->output().entry);
    return Status::Ok();
  }
  const std::int32_t held = outputs_[Index(sequence)].entry;
  KVCACHE_RETURN_IF_ERROR(pool_->MakeRoom(held, own));
  if (entries_.free_cells() == 0) {
    EndPass();
    Drop(sequence);
    restoring_.reuses = true;
  }
  restoring_.output.entry = entries_.Take(Index(sequence));
  Status status = pool_->CopyIn(*own, restoring_.output.entry);
  if (status.ok()) return status;
  if (AbandonRestore()) return std::move(status).WithContext("restoring a snapshot");
  restoring_.reuses = true;
  (void)Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  return std::move(status).WithContext("restoring a snapshot");
}

void EncoderCacheImpl::FinishRestore() {
  const auto [sequence, begin, target, with_snapshot, reuses, output] =
      std::exchange(restoring_, {});
  EndPass();
  if (!with_snapshot) {
    (void)Remove(sequence, target, kEndOfSequence).ok();  // never fails
    return;
  }
  (void)Remove(sequence, begin, kEndOfSequence).ok();  // never fails
  if (output.entry != kNone) {
    Drop(sequence);
    outputs_[Index(sequence)] = output;
  }
  lengths_[Index(sequence)] = target;
  captures_.Cancel(sequence);
}

bool EncoderCacheImpl::AbandonRestore() {
  const Restoring abandoned = std::exchange(restoring_, {});
  if (abandoned.output.entry != kNone) entries_.Release(abandoned.output.entry);
  return !abandoned.reuses;
}

Status EncoderCacheImpl::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  return CheckNeighbors(parent, child);
}

Result<std::unique_ptr<Snapshot>> EncoderCacheImpl::MergeSnapshots(
    std::unique_ptr<Snapshot>& parent, std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  auto& first = static_cast<EncoderSnapshot&>(*parent);
  auto& second = static_cast<EncoderSnapshot&>(*child);
  if (!second.HasOutputBefore(second.end())) pool_->Swap(first, second);
  second.SetRange(first.begin(), second.end());
  parent.reset();
  return std::move(child);
}

Result<SnapshotParts> EncoderCacheImpl::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                      Position position) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  KVCACHE_ASSIGN_OR_RETURN(auto first, pool_->Share({}, snapshot->begin(), position));
  auto& whole = static_cast<EncoderSnapshot&>(*snapshot);
  if (whole.HasOutputBefore(position)) pool_->Swap(*first, whole);
  whole.SetRange(position, whole.end());
  SnapshotParts parts;
  parts.first = std::move(first);
  parts.second = std::move(snapshot);
  return parts;
}

Status EncoderCacheImpl::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  return pool_->Materialize(static_cast<EncoderSnapshot&>(snapshot));
}

std::string EncoderCacheImpl::Identity() const {
  return IdentityText("encoder", storage_, encoder_.keys_identity);
}

Result<std::string> EncoderCacheImpl::Fingerprint() const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc(
      [&]() -> Result<std::string> { return Identity() + "\n" + storage_.layers().ShapesText(); });
}

Result<std::int64_t> EncoderCacheImpl::ExportSize(const Snapshot& snapshot) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Result<SnapshotHeader> EncoderCacheImpl::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const EncoderSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kEncoder;
  header.begin = own->begin();
  header.end = own->end();
  header.fingerprint = Identity();
  KVCACHE_RETURN_IF_ERROR(pool_->Describe(*own, header));
  return header;
}

Status EncoderCacheImpl::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, BeginExport(header, bytes));
    std::fill(payload.begin(), payload.end(), std::byte{0});
    return pool_->CopyOut(static_cast<const EncoderSnapshot&>(snapshot), header, payload);
  });
}

Result<std::unique_ptr<Snapshot>> EncoderCacheImpl::Import(std::span<const std::byte> bytes) {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> EncoderCacheImpl::ImportChecked(
    std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
  const SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(CheckOrigin(header, SnapshotKind::kEncoder, Identity()));
  KVCACHE_RETURN_IF_ERROR(CheckLayers(header.layers, storage_));
  const bool sane = header.numbers.size() == 3 && header.ranges.empty() && header.numbers[0] >= 0 &&
                    header.numbers[0] <= kMaxCells && header.numbers[1] >= 0 &&
                    header.numbers[1] < kEndOfSequence && header.numbers[2] >= 0 &&
                    header.numbers[2] <= kEndOfSequence;
  if (!sane) return Status(StatusCode::kCorrupt, "snapshot bytes: the output is impossible");
  Output output;
  output.tokens = static_cast<std::int32_t>(header.numbers[0]);
  output.position = static_cast<Position>(header.numbers[1]);
  output.first_gone = static_cast<Position>(header.numbers[2]);
  if (output.tokens > 0 && (output.position < header.begin || output.position >= header.end)) {
    return Status(StatusCode::kCorrupt, "snapshot bytes: the output belongs to another range");
  }
  if (output.tokens > encoder_.max_tokens) {
    return Invalid(StrCat("the snapshot's output has ", output.tokens, " tokens; the cache has ",
                          "room for ", encoder_.max_tokens));
  }
  KVCACHE_RETURN_IF_ERROR(CheckPayload(header, RoundUp(output.tokens, kCellTile)));
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot,
                           pool_->MakeFrom(header, output, bytes.subspan(read.size)));
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status EncoderCacheImpl::CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                                     std::span<const KvShape> layers) const {
  KVCACHE_RETURN_IF_ERROR(storage_.CheckReady());
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

void EncoderCacheImpl::SetMaterializeHook(const MaterializeHook& hook) {
  if (pool_ != nullptr) pool_->SetHook(hook);
}

}  // namespace kvcache
