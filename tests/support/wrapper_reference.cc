#include "support/wrapper_reference.h"

#include <algorithm>

#include "kvcache/wrapper_cache.h"

namespace kvcache::testing {

std::unique_ptr<Cache> WrapperReference::MakeCache(ReferenceBackend& backend) {
  WrapperOptions options;
  for (const auto& reference : references_) {
    options.caches.push_back(reference->MakeCache(backend));
    caches_.push_back(options.caches.back().get());
  }
  auto cache = MakeWrapperCache(std::move(options));
  cache_ = cache.get();
  return cache;
}

StatusCode WrapperReference::Prepare(const TestBatch& batch, ForwardMode mode) const {
  return FirstError(
      [&](const CacheReference& reference) { return reference.Prepare(batch, mode); });
}

StatusCode WrapperReference::CheckAccept(const std::vector<int>& last) const {
  return FirstError([&](const CacheReference& reference) { return reference.CheckAccept(last); });
}

StatusCode WrapperReference::CheckCopy(int src, int dst, Position length) const {
  return FirstError(
      [&](const CacheReference& reference) { return reference.CheckCopy(src, dst, length); });
}

StatusCode WrapperReference::CheckRemove(int sequence, Position begin, Position end) const {
  return FirstError(
      [&](const CacheReference& reference) { return reference.CheckRemove(sequence, begin, end); });
}

bool WrapperReference::CanResume(int sequence, Position position) const {
  return std::all_of(references_.begin(), references_.end(), [&](const auto& reference) {
    return reference->CanResume(sequence, position);
  });
}

bool WrapperReference::CanGoBackTo(int sequence, Position length) const {
  return std::all_of(references_.begin(), references_.end(), [&](const auto& reference) {
    return reference->CanGoBackTo(sequence, length);
  });
}

void WrapperReference::Begin(const TestBatch& batch, ForwardMode mode) {
  for (const auto& reference : references_) reference->Begin(batch, mode);
}

void WrapperReference::Evict(int sequence) {
  for (const auto& reference : references_) reference->Evict(sequence);
}

void WrapperReference::SetNonCausal(const std::vector<int>& queries) {
  for (const auto& reference : references_) reference->SetNonCausal(queries);
}

void WrapperReference::Accept(const std::vector<int>& last) {
  for (const auto& reference : references_) reference->Accept(last);
}

void WrapperReference::Copy(int src, int dst, Position length) {
  for (const auto& reference : references_) reference->Copy(src, dst, length);
}

void WrapperReference::Remove(int sequence, Position begin, Position end) {
  for (const auto& reference : references_) reference->Remove(sequence, begin, end);
}

void WrapperReference::PrepareRestore(int sequence, Position length) {
  for (const auto& reference : references_) reference->PrepareRestore(sequence, length);
}

void WrapperReference::EndPass() {
  for (const auto& reference : references_) reference->EndPass();
}

namespace {

struct WrapperSnapshotReference : ReferenceSnapshot {
  using ReferenceSnapshot::ReferenceSnapshot;
  std::vector<ReferenceSnapshotPtr> parts;

  static const WrapperSnapshotReference& Of(const ReferenceSnapshot& snapshot) {
    return dynamic_cast<const WrapperSnapshotReference&>(snapshot);
  }
};

void SetRanges(WrapperSnapshotReference& snapshot) {
  for (const ReferenceSnapshotPtr& part : snapshot.parts) {
    if (part == nullptr) continue;
    part->begin = snapshot.begin;
    part->end = snapshot.end;
  }
}

}  // namespace

StatusCode WrapperReference::CheckSnapshot(int sequence, Position begin, Position end) const {
  return FirstError([&](const CacheReference& reference) {
    return reference.CheckSnapshot(sequence, begin, end);
  });
}

ReferenceSnapshotPtr WrapperReference::TakeSnapshot(int sequence, Position begin, Position end) {
  auto snapshot = std::make_shared<WrapperSnapshotReference>(begin, end);
  bool any = false;
  for (const auto& reference : references_) {
    snapshot->parts.push_back(reference->TakeSnapshot(sequence, begin, end));
    any = any || snapshot->parts.back() != nullptr;
  }
  return any ? snapshot : nullptr;
}

StatusCode WrapperReference::CheckRestore(int sequence, const ReferenceSnapshot* snapshot,
                                          Position target) const {
  if (snapshot != nullptr && target > snapshot->end) return StatusCode::kInvalidArgument;
  for (std::size_t i = 0; i < references_.size(); ++i) {
    const ReferenceSnapshot* part = nullptr;
    if (snapshot != nullptr) {
      part = WrapperSnapshotReference::Of(*snapshot).parts[i].get();
      if (part == nullptr && target > snapshot->begin) return StatusCode::kUnsupported;
    }
    const StatusCode code = references_[i]->CheckRestore(sequence, part, target);
    if (code != StatusCode::kOk) return code;
  }
  return StatusCode::kOk;
}

void WrapperReference::Restore(int sequence, const ReferenceSnapshot* snapshot, Position target) {
  for (std::size_t i = 0; i < references_.size(); ++i) {
    const ReferenceSnapshot* const part =
        snapshot == nullptr ? nullptr : WrapperSnapshotReference::Of(*snapshot).parts[i].get();
    references_[i]->Restore(sequence, part, target);
  }
}

ReferenceSnapshotPtr WrapperReference::Merge(const ReferenceSnapshotPtr& parent,
                                             const ReferenceSnapshotPtr& child) {
  auto merged = std::make_shared<WrapperSnapshotReference>(parent->begin, child->end);
  for (std::size_t i = 0; i < references_.size(); ++i) {
    const ReferenceSnapshotPtr& first = WrapperSnapshotReference::Of(*parent).parts[i];
    const ReferenceSnapshotPtr& second = WrapperSnapshotReference::Of(*child).parts[i];
    const bool both = first != nullptr && second != nullptr;
    const bool ends_unknown = second == nullptr && child->begin < child->end;
    merged->parts.push_back(both ? references_[i]->Merge(first, second)
                            : first != nullptr && !ends_unknown ? first
                                                                : second);
  }
  SetRanges(*merged);
  return merged;
}

std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> WrapperReference::Split(
    const ReferenceSnapshotPtr& snapshot, Position position) {
  auto first = std::make_shared<WrapperSnapshotReference>(snapshot->begin, position);
  auto second = std::make_shared<WrapperSnapshotReference>(position, snapshot->end);
  bool any = false;
  for (std::size_t i = 0; i < references_.size(); ++i) {
    const ReferenceSnapshotPtr& part = WrapperSnapshotReference::Of(*snapshot).parts[i];
    std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> parts;
    if (part != nullptr) parts = references_[i]->Split(part, position);
    any = any || parts.first != nullptr;
    first->parts.push_back(parts.first);
    second->parts.push_back(parts.second);
  }
  if (!any) return {nullptr, snapshot};
  SetRanges(*second);
  return {first, second};
}

StatusCode WrapperReference::CheckSchedule(int sequence, Position begin,
                                           const std::vector<Position>& lengths) const {
  return FirstError([&](const CacheReference& reference) {
    return reference.CheckSchedule(sequence, begin, lengths);
  });
}

void WrapperReference::Schedule(int sequence, Position begin,
                                const std::vector<Position>& lengths) {
  for (const auto& reference : references_) reference->Schedule(sequence, begin, lengths);
}

std::vector<ReferenceSnapshotPtr> WrapperReference::TakeCaptures(int sequence) {
  std::vector<ReferenceSnapshotPtr> result;
  for (std::size_t i = 0; i < references_.size(); ++i) {
    const std::vector<ReferenceSnapshotPtr> parts = references_[i]->TakeCaptures(sequence);
    result.resize(std::max(result.size(), parts.size()));
    for (std::size_t j = 0; j < parts.size(); ++j) {
      if (parts[j] == nullptr) continue;
      if (result[j] == nullptr) {
        auto made = std::make_shared<WrapperSnapshotReference>(parts[j]->begin, parts[j]->end);
        made->parts.resize(references_.size());
        result[j] = made;
      }
      dynamic_cast<WrapperSnapshotReference&>(*result[j]).parts[i] = parts[j];
    }
  }
  return result;
}

void WrapperReference::Follow(ReferenceSnapshot& snapshot, const Snapshot& real) {
  const auto& parts = WrapperSnapshotReference::Of(snapshot).parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] != nullptr) references_[i]->Follow(*parts[i], *real.Part(i));
  }
}

void WrapperReference::set_snapshots(bool any) {
  for (const auto& reference : references_) reference->set_snapshots(any);
}

StatusCode WrapperReference::CheckTransaction(const std::vector<SequenceLength>& members,
                                              Position max_tokens) const {
  return FirstError([&](const CacheReference& reference) {
    return reference.CheckTransaction(members, max_tokens);
  });
}

void WrapperReference::BeginTransaction(const std::vector<SequenceLength>& members,
                                        Position max_tokens) {
  for (const auto& reference : references_) reference->BeginTransaction(members, max_tokens);
}

StatusCode WrapperReference::CheckCommit(const std::vector<SequenceLength>& kept) const {
  return FirstError([&](const CacheReference& reference) { return reference.CheckCommit(kept); });
}

void WrapperReference::Commit(const std::vector<SequenceLength>& kept) {
  for (const auto& reference : references_) reference->Commit(kept);
}

void WrapperReference::RollBack(const std::vector<SequenceLength>& members) {
  for (const auto& reference : references_) reference->RollBack(members);
}

Status WrapperReference::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  for (std::size_t i = 0; i < references_.size(); ++i) {
    cache.Wrapper()->SetLayerType(static_cast<int>(i));
    KVCACHE_RETURN_IF_ERROR(references_[i]->RunPass(cache, batch, step));
  }
  return Status::Ok();
}

Difference WrapperReference::Check() {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < references_.size(); ++i) {
    if (Difference difference = references_[i]->Check()) {
      return "cache " + std::to_string(i) + " of the wrapper: " + *difference;
    }
    bytes += caches_[i]->memory()->AllocatedBytes();
    cache_->Wrapper()->SetLayerType(static_cast<int>(i));
    if (&cache_->Visible() != &caches_[i]->Visible()) {
      return "SetLayerType(" + std::to_string(i) + ") selected another cache";
    }
  }
  return cache_->memory()->AllocatedBytes() == bytes
             ? Difference()
             : "AllocatedBytes is not the sum over the wrapper's caches";
}

// Attention caches have the longest sequences, so their length is returned if there is one.
Position WrapperReference::length(int sequence) const {
  Position length = 0;
  for (const auto& reference : references_) length = std::max(length, reference->length(sequence));
  return length;
}

unsigned WrapperReference::coverage() const {
  unsigned reached = 0;
  for (const auto& reference : references_) reached |= reference->coverage();
  return reached;
}

}  // namespace kvcache::testing
