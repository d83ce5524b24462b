// The recurrent cache's calls for snapshots (kvcache/snapshot.h).
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "cache/recurrent/recurrent_cache_impl.h"
#include "cache/snapshot/snapshot_bytes.h"

namespace kvcache {
namespace {

// Returns whether the attention of the two snapshots joins: the later one begins where the earlier
// one ends. Otherwise the later one has all that is needed, or there is a gap.
bool AttentionJoins(const RecurrentSnapshot& parent, const RecurrentSnapshot& child) {
  return parent.attention != nullptr && child.attention != nullptr &&
         parent.attention->end() == child.attention->begin();
}

}  // namespace

Result<const RecurrentSnapshot*> RecurrentCacheImpl::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const RecurrentSnapshot*>(snapshot);
  if (own != nullptr && own->pool() == pool_.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

// The attention checks the arguments. At the beginning there is no state to keep.
Result<std::unique_ptr<Snapshot>> RecurrentCacheImpl::TakeSnapshot(SequenceId sequence,
                                                                   Position begin, Position end) {
  KVCACHE_ASSIGN_OR_RETURN(auto attention, attention_.TakeSnapshot(sequence, begin, end));
  if (end == 0) return std::unique_ptr<Snapshot>();
  const StatePoint state = states_.Find(sequence, end);
  if (!state.known()) {
    return Status(StatusCode::kUnsupported,
                  StrCat("a snapshot at ", end, " of sequence ", Index(sequence),
                         ", whose nearest recurrent state below is after ",
                         states_.Newest(sequence, end), " tokens"));
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Make(begin, end));
  pool_->Hold(*snapshot, state);
  snapshot->attention = std::move(attention);
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

Status RecurrentCacheImpl::ScheduleCaptures(SequenceId sequence, Position begin,
                                            std::span<const Position> lengths) {
  KVCACHE_RETURN_IF_ERROR(attention_.ScheduleCaptures(sequence, begin, lengths));
  Status status = captures_.Schedule(sequence, begin, lengths);
  if (!status.ok()) attention_.CancelCaptures(sequence);
  return status;
}

// A capture without its state is worth nothing: the pass that reached it broke off.
Result<std::vector<std::unique_ptr<Snapshot>>> RecurrentCacheImpl::TakeCaptures(
    SequenceId sequence) {
  KVCACHE_ASSIGN_OR_RETURN(auto result, attention_.TakeCaptures(sequence));
  for (std::size_t i = 0; i < result.size(); ++i) {
    RecurrentCaptures::SnapshotPtr snapshot = captures_.Take(sequence, i);
    if (snapshot != nullptr) snapshot->attention = std::move(result[i]);
    result[i] = std::move(snapshot);
  }
  captures_.Cancel(sequence);
  return result;
}

void RecurrentCacheImpl::CancelCaptures(SequenceId sequence) {
  if (!attention_.PrepareRestore(sequence, 0).ok()) return;  // the sequence is unknown
  attention_.CancelCaptures(sequence);
  captures_.Cancel(sequence);
}

Status RecurrentCacheImpl::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                        Position target) const {
  KVCACHE_RETURN_IF_ERROR(attention_.CheckRemove(sequence, 0, kEndOfSequence));
  const std::string name = StrCat("sequence ", Index(sequence));
  if (snapshot == nullptr) {
    KVCACHE_RETURN_IF_ERROR(attention_.CheckRestore(sequence, nullptr, target));
    if (target == 0 || states_.Find(sequence, target).known()) return Status::Ok();
    return {StatusCode::kUnsupported, StrCat(name, " has no recurrent state after ", target,
                                             " tokens; the nearest below is "
                                             "after ",
                                             states_.Newest(sequence, target))};
  }
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
  const Position held = own->attention == nullptr ? attention_.cells().history(sequence).length()
                                                  : own->attention->end();
  if (held < target) {
    return {StatusCode::kUnsupported,
            StrCat("restoring ", name, " to ", target, " tokens; there are keys of ", held,
                   " only; restore what lies between first")};
  }
  return attention_.CheckRestore(sequence, own->attention.get(), target);
}

// The state is staged first, because the attention may have to drop the sequence for its cells.
Status RecurrentCacheImpl::BeginRestore(SequenceId sequence, const Snapshot* snapshot,
                                        Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  restoring_ = {.sequence = sequence, .target = target};
  const auto* const own = static_cast<const RecurrentSnapshot*>(snapshot);
  const Snapshot* const attention = own == nullptr ? nullptr : own->attention.get();
  if (own != nullptr) {
    auto cell = pool_->Stage(*own);
    if (!cell.ok()) return std::move(cell).TakeStatus().WithContext("restoring a recurrent state");
    restoring_.state = {*cell, target};
    const bool window = recurrent_.attention.window > 0;
    const bool goes_back = attention == nullptr || (!window && target <= attention->begin());
    restoring_.kept = goes_back ? target : window ? 0 : attention->begin();
  }
  Status status = attention_.BeginRestore(sequence, attention, target);
  if (status.ok() || AbandonRestore()) return status;
  (void)Remove(sequence, 0, kEndOfSequence).ok();  // never fails
  restoring_.emptied = true;
  return status;
}

void RecurrentCacheImpl::FinishRestore() {
  const auto [sequence, state, target, kept, emptied] = std::exchange(restoring_, {});
  attention_.FinishRestore();
  EndStates();
  prepared_[Index(sequence)] = kNotPrepared;
  if (state.known()) {
    states_.Replace(sequence, state, kept);
    attention_.CancelCaptures(sequence);
    captures_.Cancel(sequence);
  } else {
    states_.GoBack(sequence, target);
    captures_.Truncate(sequence, target);
  }
}

bool RecurrentCacheImpl::AbandonRestore() {
  const Restoring abandoned = std::exchange(restoring_, {});
  if (abandoned.state.known()) states_.Drop(abandoned.state.cell);
  return attention_.AbandonRestore() && !abandoned.emptied;
}

Status RecurrentCacheImpl::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  const auto& first = static_cast<const RecurrentSnapshot&>(parent);
  const auto& second = static_cast<const RecurrentSnapshot&>(child);
  if (!AttentionJoins(first, second)) return Status::Ok();
  return attention_.PrepareMerge(*first.attention, *second.attention);
}

Result<std::unique_ptr<Snapshot>> RecurrentCacheImpl::MergeSnapshots(
    std::unique_ptr<Snapshot>& parent, std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  auto& first = static_cast<RecurrentSnapshot&>(*parent);
  auto& second = static_cast<RecurrentSnapshot&>(*child);
  if (AttentionJoins(first, second)) {
    KVCACHE_ASSIGN_OR_RETURN(second.attention,
                             attention_.MergeSnapshots(first.attention, second.attention));
  } else if (second.attention == nullptr) {
    second.attention = std::move(first.attention);
  }
  second.SetRange(first.begin(), second.end());
  parent.reset();
  return std::move(child);
}

Result<SnapshotParts> RecurrentCacheImpl::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                        Position position) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  SnapshotParts parts;
  parts.second = std::move(snapshot);
  return parts;
}

Status RecurrentCacheImpl::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  auto& own = static_cast<RecurrentSnapshot&>(snapshot);
  if (own.attention != nullptr) KVCACHE_RETURN_IF_ERROR(attention_.Materialize(*own.attention));
  return pool_->Materialize(own);
}

std::string RecurrentCacheImpl::Identity() const {
  std::string layers;
  for (const int layer : recurrent_.layers) layers += StrCat(layers.empty() ? "" : " ", layer);
  return StrCat("recurrent, layers ", layers.empty() ? "none" : layers, ", convolution ",
                recurrent_.conv_dim, " x ", recurrent_.conv_channels, ", state ",
                recurrent_.state_size, ", with ");
}

Result<std::string> RecurrentCacheImpl::Fingerprint() const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string attention, attention_.Fingerprint());
  return WithoutBadAlloc([&]() -> Result<std::string> { return Identity() + attention; });
}

Result<std::string> RecurrentCacheImpl::FirstLine() const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string all, Fingerprint());
  return all.substr(0, all.find('\n'));
}

Result<SnapshotHeader> RecurrentCacheImpl::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const RecurrentSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kRecurrent;
  header.begin = own->begin();
  header.end = own->end();
  KVCACHE_ASSIGN_OR_RETURN(header.fingerprint, FirstLine());
  header.numbers = {own->tokens()};
  std::int64_t attention = 0;
  if (own->attention != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(attention, attention_.ExportSize(*own->attention));
  }
  header.parts = {attention};
  header.payload = attention + RoundUp(pool_->StateBytes(), kSnapshotAlignment);
  return header;
}

Result<std::int64_t> RecurrentCacheImpl::ExportSize(const Snapshot& snapshot) const {
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Status RecurrentCacheImpl::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, BeginExport(header, bytes));
    const auto& own = static_cast<const RecurrentSnapshot&>(snapshot);
    const auto attention = static_cast<std::size_t>(header.parts.front());
    if (own.attention != nullptr) {
      KVCACHE_RETURN_IF_ERROR(attention_.Export(*own.attention, payload.first(attention)));
    }
    const auto state = static_cast<std::size_t>(pool_->StateBytes());
    const std::span<std::byte> rest = payload.subspan(attention + state);
    std::fill(rest.begin(), rest.end(), std::byte{0});
    return pool_->CopyOut(own, payload.subspan(attention, state));
  });
}

Result<std::unique_ptr<Snapshot>> RecurrentCacheImpl::Import(std::span<const std::byte> bytes) {
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> RecurrentCacheImpl::ImportChecked(
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
  const std::int64_t state = RoundUp(pool_->StateBytes(), kSnapshotAlignment);
  const std::int64_t size = header.payload - state;
  if (size < 0 || header.parts[0] != size) {
    return corrupt(StrCat(header.payload, " bytes of attention and states; the attention has ",
                          header.parts[0], ", and the states must have ", state));
  }
  std::unique_ptr<Snapshot> attention;
  const std::span<const std::byte> payload = bytes.subspan(static_cast<std::size_t>(read.size));
  if (size > 0) {
    auto imported = attention_.Import(payload.first(static_cast<std::size_t>(size)));
    if (!imported.ok()) return Status(imported.status()).WithContext("the attention's snapshot");
    attention = std::move(*imported);
    if (attention->end() > header.end || attention->begin() > header.numbers[0] ||
        attention->end() < header.numbers[0]) {
      return corrupt("the attention is of another range than the state");
    }
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, pool_->Make(header.begin, header.end));
  KVCACHE_RETURN_IF_ERROR(
      pool_->CopyIn(*snapshot,
                    payload.subspan(static_cast<std::size_t>(size),
                                    static_cast<std::size_t>(pool_->StateBytes())),
                    static_cast<Position>(header.numbers[0])));
  snapshot->attention = std::move(attention);
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

void RecurrentCacheImpl::LimitSpareBytes(std::int64_t max_bytes) {
  attention_.LimitSpareBytes(max_bytes);
  if (pool_ != nullptr) pool_->memory().Limit(max_bytes);
}

void RecurrentCacheImpl::SetMaterializeHook(const MaterializeHook& hook) {
  attention_.SetMaterializeHook(hook);
  if (pool_ != nullptr) pool_->SetHook(hook);
}

}  // namespace kvcache
