#include "kvcache/wrapper_cache.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/cache_checks.h"
#include "cache/snapshot_bytes.h"
#include "cache/wrapper_snapshot.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/recurrent_cache.h"

namespace kvcache {
namespace {

class WrapperCache final : public Cache {
 public:
  explicit WrapperCache(WrapperOptions options)
      : caches_(std::move(options.caches)), cache_of_layer_(std::move(options.cache_of_layer)) {
    assert(!caches_.empty());
  }

  Status Init(KvBackend& backend, const CacheOptions& options) override {
    Status status = ForAll([&](Cache& cache) { return cache.Init(backend, options); });
    if (!status.ok()) Close();
    return status;
  }

  void Close() override {
    for (const auto& cache : caches_) cache->Close();
  }

  Status SetConfig(const CacheConfig& config) override {
    return ForAll([&](Cache& cache) { return cache.SetConfig(config); });
  }

  // If one cache fails, those that were prepared before have changed nothing.
  Status PrepareForward(const Batch& batch, ForwardMode mode) override {
    return ForAll([&](Cache& cache) { return cache.PrepareForward(batch, mode); });
  }

  void BeginForward() override {
    for (const auto& cache : caches_) cache->BeginForward();
  }

  void EndPass() override {
    for (const auto& cache : caches_) cache->EndPass();
  }

  void SetLayer(int layer) override {
    for (const auto& cache : caches_) cache->SetLayer(layer);
    if (layer >= 0 && static_cast<std::size_t>(layer) < cache_of_layer_.size()) {
      SetLayerType(cache_of_layer_[layer]);
    }
  }
  void SetLayerType(int type) override {
    chosen_ = type >= 0 && static_cast<std::size_t>(type) < caches_.size() ? type : kNone;
  }

  Status SetCausal(std::span<const std::int32_t> except) override {
    return ForAll([&](Cache& cache) { return cache.SetCausal(except); });
  }

  // An error of the first cache may be kInvalidArgument, because nothing has changed. After an
  // error of a later cache no cache keeps a draft, so kInvalidArgument becomes kInternal.
  Status PrepareAccept(std::span<const std::int32_t> last) override {
    for (const auto& cache : caches_) {
      Status status = cache->PrepareAccept(last);
      if (status.ok()) continue;
      const bool refused = status.code() == StatusCode::kInvalidArgument;
      if (refused && cache == caches_.front()) return status;
      EndPass();
      return refused ? Status(StatusCode::kInternal, status.message()) : status;
    }
    return Status::Ok();
  }
  void FinishAccept() override {
    for (const auto& cache : caches_) cache->FinishAccept();
  }

  Status Put(const TensorView& k, const TensorView& v) override {
    KVCACHE_RETURN_IF_ERROR(CheckChosen());
    return caches_[chosen_]->Put(k, v);
  }
  Result<DenseKv> Get() override {
    KVCACHE_RETURN_IF_ERROR(CheckChosen());
    return caches_[chosen_]->Get();
  }
  Result<LayerKv> Storage() override {
    KVCACHE_RETURN_IF_ERROR(CheckChosen());
    return caches_[chosen_]->Storage();
  }
  const Visibility& Visible() const override {
    return chosen_ == kNone ? nothing_ : caches_[chosen_]->Visible();
  }

  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override {
    KVCACHE_RETURN_IF_ERROR(CheckChosen());
    return caches_[chosen_]->FindCells(sequence, begin, end, runs);
  }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override {
    return std::all_of(caches_.begin(), caches_.end(),
                       [&](const auto& cache) { return cache->CanResume(sequence, position); });
  }
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override;
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override {
    return ForAll([&](const Cache& cache) { return cache.CheckRemove(sequence, begin, end); });
  }
  Status Remove(SequenceId sequence, Position begin, Position end) override {
    KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
    Status status = ForAll([&](Cache& cache) { return cache.Remove(sequence, begin, end); });
    if (!status.ok()) CancelCaptures(sequence);  // the caches may differ now
    return status;
  }
  Status Compact() override {
    Status first;
    for (const auto& cache : caches_) {  // all caches, even after an error: the pass ends in each
      Status status = cache->Compact();
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

  Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                 Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override {
    for (const auto& cache : caches_) cache->FinishRestore();
  }
  bool AbandonRestore() override {
    bool unchanged = true;
    for (const auto& cache : caches_) unchanged = cache->AbandonRestore() && unchanged;
    return unchanged;
  }
  void CancelCaptures(SequenceId sequence) override {
    for (const auto& cache : caches_) cache->CancelCaptures(sequence);
  }
  Status PrepareMerge(Snapshot& parent, Snapshot& child) override;
  Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                   std::unique_ptr<Snapshot>& child) override;
  Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                      Position position) override;
  Status Materialize(Snapshot& snapshot) override;
  Result<std::string> Fingerprint() const override;
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const override;
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) override;
  Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) override;
  void SetMaterializeHook(const MaterializeHook& hook) override {
    for (const auto& cache : caches_) cache->SetMaterializeHook(hook);
  }
  std::int64_t SnapshotBytes() const override { return SumOf(&Cache::SnapshotBytes); }

  Status PrepareTransaction(std::span<const SequenceLength> members, Position max_tokens) override {
    return ForAll([&](Cache& cache) { return cache.PrepareTransaction(members, max_tokens); });
  }
  void BeginTransaction(std::span<const SequenceLength> members, Position max_tokens) override {
    for (const auto& cache : caches_) cache->BeginTransaction(members, max_tokens);
  }
  Status CheckCommit(std::span<const SequenceLength> kept) const override {
    return ForAll([&](const Cache& cache) { return cache.CheckCommit(kept); });
  }
  Status PrepareCommit(std::span<const SequenceLength> kept) override {
    return ForAll([&](Cache& cache) { return cache.PrepareCommit(kept); });
  }
  void FinishCommit(std::span<const SequenceLength> kept) override {
    for (const auto& cache : caches_) cache->FinishCommit(kept);
  }
  void RollBack(std::span<const SequenceLength> members) override {
    for (const auto& cache : caches_) cache->RollBack(members);
  }

  std::int64_t AllocatedBytes() const override { return SumOf(&Cache::AllocatedBytes); }
  std::int64_t UsedBytes() const override { return SumOf(&Cache::UsedBytes); }
  std::int64_t FreeCells() const override {
    std::int64_t fewest = Cache::FreeCells();
    for (const auto& cache : caches_) fewest = std::min(fewest, cache->FreeCells());
    return fewest;
  }
  EncoderCache* Encoder() override { return FirstOf(&Cache::Encoder); }
  RecurrentCache* Recurrent() override { return FirstOf(&Cache::Recurrent); }

 private:
  static constexpr int kNone = -1;

  Status CheckChosen() const {
    if (chosen_ != kNone) return Status::Ok();
    return Invalid(
        StrCat("no cache is selected; SetLayerType must be in [0, ", caches_.size(), ")"));
  }

  template <typename Call>
  Status ForAll(const Call& call) const {
    for (const auto& cache : caches_) KVCACHE_RETURN_IF_ERROR(call(*cache));
    return Status::Ok();
  }

  std::int64_t SumOf(std::int64_t (Cache::*bytes)() const) const {
    std::int64_t sum = 0;
    for (const auto& cache : caches_) sum += (*cache.*bytes)();
    return sum;
  }

  template <typename Part>
  Part* FirstOf(Part* (Cache::*part)()) {
    for (const auto& cache : caches_) {
      if (Part* found = (*cache.*part)(); found != nullptr) return found;
    }
    return nullptr;
  }

  Result<const WrapperSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  Result<std::unique_ptr<WrapperSnapshot>> MakeSnapshot(Position begin, Position end) const;
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);

  std::vector<std::unique_ptr<Cache>> caches_;
  std::shared_ptr<const int> identity_ = std::make_shared<const int>(0);  // of its snapshots
  std::vector<int> cache_of_layer_;
  int chosen_ = 0;  // of caches_, or kNone
  Visibility nothing_;
};

// After an error half-way, dst is emptied in all caches, so that they agree.
Status WrapperCache::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  if (src == dst) KVCACHE_RETURN_IF_ERROR(CheckRemove(src, std::max(length, 0), kEndOfSequence));
  bool changed = false;
  Status status = ForAll([&](Cache& cache) {
    Status copied = cache.CopyPrefix(src, dst, length);
    changed = changed || copied.ok();
    return copied;
  });
  if (!status.ok() && changed) {
    for (const auto& cache : caches_) {
      (void)cache->Remove(dst, 0, kEndOfSequence).ok();  // never fails
    }
  }
  return status;
}

// Asks all caches in turn for the minimum so far, until they agree.
Result<Position> WrapperCache::PrepareRestore(SequenceId sequence, Position target) {
  Position agreed = std::max(target, 0);
  for (std::size_t agreeing = 0, i = 0; agreeing < caches_.size(); i = (i + 1) % caches_.size()) {
    KVCACHE_ASSIGN_OR_RETURN(const Position kept, caches_[i]->PrepareRestore(sequence, agreed));
    agreeing = kept >= agreed ? agreeing + 1 : 1;
    agreed = std::min(agreed, kept);
  }
  return agreed;
}

// ---- Snapshots.

Result<const WrapperSnapshot*> WrapperCache::OwnSnapshot(const Snapshot* snapshot) const {
  const auto* const own = dynamic_cast<const WrapperSnapshot*>(snapshot);
  if (own != nullptr && own->owner() == identity_.get()) return own;
  return Invalid(snapshot == nullptr ? "the snapshot is null"
                                     : "the snapshot is of another cache; export and import it");
}

Result<std::unique_ptr<WrapperSnapshot>> WrapperCache::MakeSnapshot(Position begin,
                                                                    Position end) const {
  try {
    auto snapshot = std::make_unique<WrapperSnapshot>(identity_, begin, end);
    snapshot->parts.resize(caches_.size());
    return snapshot;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for a snapshot");
  }
}

Result<std::unique_ptr<Snapshot>> WrapperCache::TakeSnapshot(SequenceId sequence, Position begin,
                                                             Position end) {
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(begin, end));
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(snapshot->parts[i], caches_[i]->TakeSnapshot(sequence, begin, end));
  }
  if (snapshot->Empty()) return std::unique_ptr<Snapshot>();
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

// After an error half-way, the caches before it take their schedule back.
Status WrapperCache::ScheduleCaptures(SequenceId sequence, Position begin,
                                      std::span<const Position> lengths) {
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    Status status = caches_[i]->ScheduleCaptures(sequence, begin, lengths);
    if (status.ok()) continue;
    while (i-- > 0) caches_[i]->CancelCaptures(sequence);
    return status;
  }
  return Status::Ok();
}

Result<std::vector<std::unique_ptr<Snapshot>>> WrapperCache::TakeCaptures(SequenceId sequence) {
  std::vector<std::unique_ptr<Snapshot>> result;
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(auto parts, caches_[i]->TakeCaptures(sequence));
    try {
      result.resize(std::max(result.size(), parts.size()));
    } catch (const std::bad_alloc&) {
      return Status(StatusCode::kOutOfMemory, "no memory for captures");
    }
    for (std::size_t j = 0; j < parts.size(); ++j) {
      if (parts[j] == nullptr) continue;
      if (result[j] == nullptr) {
        KVCACHE_ASSIGN_OR_RETURN(result[j], MakeSnapshot(parts[j]->begin(), parts[j]->end()));
      }
      static_cast<WrapperSnapshot&>(*result[j]).parts[i] = std::move(parts[j]);
    }
  }
  return result;
}

Status WrapperCache::CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                                  Position target) const {
  const WrapperSnapshot* own = nullptr;
  if (snapshot != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(own, OwnSnapshot(snapshot));
    if (target > own->end()) {
      return Invalid(StrCat("restoring sequence ", Index(sequence), " to ", target,
                            " tokens; must be in [0, ", own->end(), "]"));
    }
  }
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const Snapshot* const part = own == nullptr ? nullptr : own->parts[i].get();
    if (own != nullptr && part == nullptr && target > own->begin()) {
      return {StatusCode::kUnsupported,
              StrCat("the snapshot [", own->begin(), ", ", own->end(), ") has no state of cache ",
                     i, " after ", own->begin(), " tokens")};
    }
    KVCACHE_RETURN_IF_ERROR(caches_[i]->CheckRestore(sequence, part, target));
  }
  return Status::Ok();
}

// If one cache had to drop the sequence and another one failed, the sequence is dropped in all.
Status WrapperCache::BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) {
  KVCACHE_RETURN_IF_ERROR(CheckRestore(sequence, snapshot, target));
  const auto* const own = static_cast<const WrapperSnapshot*>(snapshot);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const Snapshot* const part = own == nullptr ? nullptr : own->parts[i].get();
    Status status = caches_[i]->BeginRestore(sequence, part, target);
    if (status.ok()) continue;
    bool unchanged = true;
    for (std::size_t j = 0; j <= i; ++j) unchanged = caches_[j]->AbandonRestore() && unchanged;
    for (const auto& cache : caches_) {
      if (!unchanged) (void)cache->Remove(sequence, 0, kEndOfSequence).ok();  // never fails
    }
    return status;
  }
  return Status::Ok();
}

Status WrapperCache::PrepareMerge(Snapshot& parent, Snapshot& child) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&parent).status());
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&child).status());
  KVCACHE_RETURN_IF_ERROR(CheckNeighbors(parent, child));
  auto& first = static_cast<WrapperSnapshot&>(parent);
  auto& second = static_cast<WrapperSnapshot&>(child);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (first.parts[i] == nullptr || second.parts[i] == nullptr) continue;
    KVCACHE_RETURN_IF_ERROR(caches_[i]->PrepareMerge(*first.parts[i], *second.parts[i]));
  }
  return Status::Ok();
}

// A later snapshot that covers tokens and has nothing of a cache lacks its state after them, so the
// earlier state is of no use either.
Result<std::unique_ptr<Snapshot>> WrapperCache::MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                               std::unique_ptr<Snapshot>& child) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNull(parent, child));
  KVCACHE_RETURN_IF_ERROR(PrepareMerge(*parent, *child));
  auto& first = static_cast<WrapperSnapshot&>(*parent);
  auto& second = static_cast<WrapperSnapshot&>(*child);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    std::unique_ptr<Snapshot>& part = first.parts[i];
    if (part == nullptr) {
      part = std::move(second.parts[i]);
    } else if (second.parts[i] != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(part, caches_[i]->MergeSnapshots(part, second.parts[i]));
    } else if (second.begin() < second.end()) {
      part.reset();
    }
    if (part != nullptr) part->SetRange(first.begin(), second.end());
  }
  first.SetRange(first.begin(), second.end());
  child.reset();
  return std::move(parent);
}

Result<SnapshotParts> WrapperCache::SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                                  Position position) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(snapshot.get()).status());
  KVCACHE_RETURN_IF_ERROR(CheckInside(*snapshot, position));
  KVCACHE_ASSIGN_OR_RETURN(auto first, MakeSnapshot(snapshot->begin(), position));
  auto& whole = static_cast<WrapperSnapshot&>(*snapshot);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (whole.parts[i] == nullptr) continue;
    auto parts = caches_[i]->SplitSnapshot(whole.parts[i], position);
    if (parts.ok()) {
      first->parts[i] = std::move(parts->first);
      whole.parts[i] = std::move(parts->second);
      continue;
    }
    for (; i-- > 0;) {  // merging what was one before needs no memory
      if (first->parts[i] == nullptr) continue;
      auto merged = caches_[i]->MergeSnapshots(first->parts[i], whole.parts[i]);
      if (merged.ok()) whole.parts[i] = std::move(*merged);
    }
    return parts.status();
  }
  SnapshotParts result;
  if (!first->Empty()) {
    for (const auto& part : whole.parts) {
      if (part != nullptr) part->SetRange(position, whole.end());
    }
    whole.SetRange(position, whole.end());
    result.first = std::move(first);
  }
  result.second = std::move(snapshot);
  return result;
}

Status WrapperCache::Materialize(Snapshot& snapshot) {
  KVCACHE_RETURN_IF_ERROR(OwnSnapshot(&snapshot).status());
  auto& own = static_cast<WrapperSnapshot&>(snapshot);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    if (own.parts[i] != nullptr) KVCACHE_RETURN_IF_ERROR(caches_[i]->Materialize(*own.parts[i]));
  }
  return Status::Ok();
}

// The first line of a wrapper's fingerprint names its caches; the others are those of the caches.
Result<std::string> WrapperCache::Fingerprint() const {
  std::string text = StrCat("wrapper of ", caches_.size(), "\n");
  for (const auto& cache : caches_) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string inner, cache->Fingerprint());
    text += inner;
  }
  return text;
}

Result<SnapshotHeader> WrapperCache::HeaderOf(const Snapshot& snapshot) const {
  KVCACHE_ASSIGN_OR_RETURN(const WrapperSnapshot* own, OwnSnapshot(&snapshot));
  SnapshotHeader header;
  header.kind = SnapshotKind::kWrapper;
  header.begin = own->begin();
  header.end = own->end();
  header.fingerprint = StrCat("wrapper of ", caches_.size());
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    std::int64_t size = 0;
    if (own->parts[i] != nullptr) {
      KVCACHE_ASSIGN_OR_RETURN(size, caches_[i]->ExportSize(*own->parts[i]));
    }
    header.parts.push_back(size);
    header.payload += size;
  }
  return header;
}

Result<std::int64_t> WrapperCache::ExportSize(const Snapshot& snapshot) const {
  return WithoutBadAlloc([&]() -> Result<std::int64_t> {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    return ExportedSize(header);
  });
}

Status WrapperCache::Export(const Snapshot& snapshot, std::span<std::byte> bytes) {
  return WithoutBadAlloc([&]() -> Status {
    KVCACHE_ASSIGN_OR_RETURN(const SnapshotHeader header, HeaderOf(snapshot));
    KVCACHE_ASSIGN_OR_RETURN(std::span<std::byte> left, BeginExport(header, bytes));
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const auto size = static_cast<std::size_t>(header.parts[i]);
      if (const Snapshot* const part = snapshot.Part(i); part != nullptr) {
        KVCACHE_RETURN_IF_ERROR(caches_[i]->Export(*part, left.first(size)));
      }
      left = left.subspan(size);
    }
    return Status::Ok();
  });
}

Result<std::unique_ptr<Snapshot>> WrapperCache::Import(std::span<const std::byte> bytes) {
  return WithoutBadAlloc([&] { return ImportChecked(bytes); });
}

Result<std::unique_ptr<Snapshot>> WrapperCache::ImportChecked(std::span<const std::byte> bytes) {
  KVCACHE_ASSIGN_OR_RETURN(const ReadSnapshotHeader read, ReadHeader(bytes));
  const SnapshotHeader& header = read.header;
  KVCACHE_RETURN_IF_ERROR(
      CheckOrigin(header, SnapshotKind::kWrapper, StrCat("wrapper of ", caches_.size())));
  std::int64_t left = header.payload;
  for (const std::int64_t part : header.parts) left = part < 0 || part > left ? -1 : left - part;
  if (header.parts.size() != caches_.size() || left != 0) {
    return Status(StatusCode::kCorrupt,
                  "snapshot bytes: the sizes of the inner snapshots do not add up");
  }
  KVCACHE_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(header.begin, header.end));
  auto at = static_cast<std::size_t>(read.size);
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    const auto size = static_cast<std::size_t>(header.parts[i]);
    if (size > 0) {
      auto part = caches_[i]->Import(bytes.subspan(at, size));
      if (!part.ok()) return Status(part.status()).WithContext(StrCat("inner snapshot ", i));
      if ((*part)->begin() != header.begin || (*part)->end() != header.end) {
        return Status(StatusCode::kCorrupt, "snapshot bytes: the inner ranges differ");
      }
      snapshot->parts[i] = std::move(*part);
    }
    at += size;
  }
  return std::unique_ptr<Snapshot>(std::move(snapshot));
}

}  // namespace

std::unique_ptr<Cache> MakeWrapperCache(WrapperOptions options) {
  return std::make_unique<WrapperCache>(std::move(options));
}

}  // namespace kvcache
