#include "cache/recurrent/recurrent_snapshots.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache {
namespace {

// Returns whether the attention of the two snapshots joins: the later one begins where the earlier
// one ends. Otherwise the later one has all that is needed, or there is a gap.
bool AttentionJoins(const RecurrentSnapshot& parent, const RecurrentSnapshot& child) {
  return parent.attention != nullptr && child.attention != nullptr &&
         parent.attention->end() == child.attention->begin();
}

}  // namespace

Result<const RecurrentSnapshot*> RecurrentSnapshots::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const RecurrentSnapshot*>(snapshot);
  if (own != nullptr && own->pool() == parts_.pool.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

// The attention checks the arguments. At the beginning there is no state to keep.
Result<std::unique_ptr<Snapshot>> RecurrentSnapshots::TakeSnapshot(SequenceId sequence,
                                                                   Position begin, Position end) {
  KVCACHE_ASSIGN_OR_RETURN(auto attention,
                           parts_.attention.own_snapshots().TakeSnapshot(sequence, begin, end));
  if (end == 0) return std::unique_ptr<Snapshot>();
  const StatePoint state = parts_.states.Find(sequence, end);
  if (!state.known()) {
    return Status(StatusCode::kUnsupported,
                  StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                         ", whose nearest recurrent state below is after ",
                         parts_.states.Newest(sequence, end), " tokens"));
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->Make(begin, end));
  parts_.pool->Hold(*snapshot, state);
  snapshot->attention = std::move(attention);
  return std::unique_ptr<Snapshot>(std::move(snapshot));
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
Result<std::vector<std::unique_ptr<Snapshot>>> RecurrentSnapshots::TakeCaptures(
    SequenceId sequence) {
  KVCACHE_ASSIGN_OR_RETURN(auto result, parts_.attention.own_snapshots().TakeCaptures(sequence));
  for (std::size_t i = 0; i < result.size(); ++i) {
    RecurrentCaptures::SnapshotPtr snapshot = parts_.captures.Take(sequence, i);
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
  return {StatusCode::kUnsupported,
          StrCat("sequence ", Index(sequence), " has no recurrent state after ", target,
                 " tokens; the nearest below is after ", parts_.states.Newest(sequence, target))};
}

Status RecurrentSnapshots::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                        Position target) const {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.CheckRemove(sequence, 0, kEndOfSequence));
  const std::string name = StrCat("sequence ", Index(sequence));
  if (snapshot == nullptr) return CheckWithout(sequence, target);
  KVCACHE_ASSIGN_OR_RETURN(const RecurrentSnapshot* own, OwnSnapshot(snapshot));
  if (target < 0 || target > own->end()) {
    return Invalid(
        StrCat("restoring ", name, " to ", target, " tokens; must be in [0, ", own->end(), "]"));
  }
  if (target != own->tokens()) {
    return {StatusCode::kUnsupported, StrCat("restoring ", name, " to ", target,
                                             " tokens; the snapshot's recurrent state is "
                                             "after ",
                                             own->tokens(), ", and restores at no other length")};
  }
  const Position held = own->attention == nullptr ? parts_.length(sequence) : own->attention->end();
  if (held < target) {
    return {StatusCode::kUnsupported,
            StrCat("restoring ", name, " to ", target, " tokens; there are keys of ", held,
                   " only; restore what lies between first")};
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
  (void)sequences_.Remove(sequence, 0, kEndOfSequence).ok();  // never fails
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

Status RecurrentSnapshots::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  const auto& first = static_cast<const RecurrentSnapshot&>(parent);
  const auto& second = static_cast<const RecurrentSnapshot&>(child);
  if (!AttentionJoins(first, second)) return Status::Ok();
  return parts_.attention.own_snapshots().PrepareMerge(*first.attention, *second.attention);
}

Result<std::unique_ptr<Snapshot>> RecurrentSnapshots::MergeSnapshots(
    std::unique_ptr<Snapshot>& parent, std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
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

Result<SnapshotParts> RecurrentSnapshots::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                        Position position) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  SnapshotParts parts;
  parts.second = std::move(snapshot);
  return parts;
}

Status RecurrentSnapshots::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  auto& own = static_cast<RecurrentSnapshot&>(snapshot);
  if (own.attention != nullptr)
    KVCACHE_RETURN_IF_ERROR(parts_.attention.own_snapshots().Materialize(*own.attention));
  return parts_.pool->Materialize(own);
}

std::string RecurrentSnapshots::Identity() const {
  std::string layers;
  for (const int layer : parts_.options.layers) layers += StrCat(layers.empty() ? "" : " ", layer);
  return StrCat("recurrent, layers ", layers.empty() ? "none" : layers, ", convolution ",
                parts_.options.conv_dim, " x ", parts_.options.conv_channels, ", state ",
                parts_.options.state_size, ", with ");
}

Result<std::string> RecurrentSnapshots::Fingerprint() const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string attention,
                           parts_.attention.own_snapshots().Fingerprint());
  return WithoutBadAlloc([&]() -> Result<std::string> { return Identity() + attention; });
}

Result<std::string> RecurrentSnapshots::FirstLine() const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string all, Fingerprint());
  return all.substr(0, all.find('\n'));
}

Result<SnapshotHeader> RecurrentSnapshots::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const RecurrentSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kRecurrent;
  header.begin = own->begin();
  header.end = own->end();
  KVCACHE_ASSIGN_OR_RETURN(header.fingerprint, FirstLine());
  header.numbers = {own->tokens()};
  std::int64_t attention = 0;
  if (own->attention != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(attention,
                             parts_.attention.own_snapshots().ExportSize(*own->attention));
  }
  header.parts = {attention};
  header.payload = attention + RoundUp(parts_.pool->StateBytes(), kSnapshotAlignment);
  return header;
}

Result<std::int64_t> RecurrentSnapshots::ExportSize(const Snapshot& snapshot) const {
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Status RecurrentSnapshots::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, BeginExport(header, bytes));
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
  });
}

Result<std::unique_ptr<Snapshot>> RecurrentSnapshots::Import(std::span<const std::byte> bytes) {
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> RecurrentSnapshots::ImportChecked(
    std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string line, FirstLine());
  KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
  const SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(CheckOrigin(header, SnapshotKind::kRecurrent, line));
  const auto corrupt = [](const std::string& what) {
    return Status(StatusCode::kCorrupt, "snapshot bytes: " + what);
  };
  const bool described = header.numbers.size() == 1 && header.parts.size() == 1 &&
                         header.ranges.empty() && header.layers.empty();
  if (!described || header.numbers[0] < 1 || header.numbers[0] > header.end) {
    return corrupt("the recurrent state is impossible");
  }
  const std::int64_t state = RoundUp(parts_.pool->StateBytes(), kSnapshotAlignment);
  const std::int64_t size = header.payload - state;
  if (size < 0 || header.parts[0] != size) {
    return corrupt(StrCat(header.payload, " bytes of attention and states; the attention has ",
                          header.parts[0], ", and the states must have ", state));
  }
  std::unique_ptr<Snapshot> attention;
  const std::span<const std::byte> payload = bytes.subspan(static_cast<std::size_t>(read.size));
  if (size > 0) {
    auto imported =
        parts_.attention.own_snapshots().Import(payload.first(static_cast<std::size_t>(size)));
    if (!imported.ok()) return Status(imported.status()).WithContext("the attention's snapshot");
    attention = std::move(*imported);
    if (attention->end() > header.end || attention->begin() > header.numbers[0] ||
        attention->end() < header.numbers[0]) {
      return corrupt("the attention is of another range than the state");
    }
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, parts_.pool->Make(header.begin, header.end));
  KVCACHE_RETURN_IF_ERROR(
      parts_.pool->CopyIn(*snapshot,
                          payload.subspan(static_cast<std::size_t>(size),
                                          static_cast<std::size_t>(parts_.pool->StateBytes())),
                          static_cast<Position>(header.numbers[0])));
  snapshot->attention = std::move(attention);
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

void RecurrentSnapshots::LimitSpareBytes(std::int64_t max_bytes) {
  parts_.attention.own_snapshots().LimitSpareBytes(max_bytes);
  if (parts_.pool != nullptr) parts_.pool->memory().Limit(max_bytes);
}

void RecurrentSnapshots::SetMaterializeHook(const MaterializeHook& hook) {
  parts_.attention.own_snapshots().SetMaterializeHook(hook);
  if (parts_.pool != nullptr) parts_.pool->SetHook(hook);
}

std::int64_t RecurrentSnapshots::SnapshotBytes() const {
  return parts_.attention.own_snapshots().SnapshotBytes() +
         (parts_.pool == nullptr ? 0 : parts_.pool->bytes());
}

std::int64_t RecurrentSnapshots::SpareBytes() const {
  return parts_.attention.own_snapshots().SpareBytes() +
         (parts_.pool == nullptr ? 0 : parts_.pool->memory().spare_bytes());
}

}  // namespace kvcache
