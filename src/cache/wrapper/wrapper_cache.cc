#include "kvcache/wrapper_cache.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/strings.h"
#include "cache/cache_checks.h"
#include "cache/wrapper/wrapper_cache_impl.h"

namespace kvcache {

Status WrapperCache::Init(KvBackend& backend, const CacheOptions& options) {
  Status status = ForAll([&](Cache& cache) { return cache.Init(backend, options); });
  if (!status.ok()) Close();
  return status;
}

void WrapperCache::Close() {
  for (const auto& cache : caches_) cache->Close();
}

std::int64_t WrapperCache::FreeCells() const {
  std::int64_t fewest = Cache::FreeCells();
  for (const auto& cache : caches_) fewest = std::min(fewest, cache->FreeCells());
  return fewest;
}

void WrapperCache::SetLayer(int layer) {
  for (const auto& cache : caches_) cache->SetLayer(layer);
  if (layer >= 0 && static_cast<std::size_t>(layer) < cache_of_layer_.size()) {
    SetLayerType(cache_of_layer_[layer]);
  }
}

Cache& WrapperCache::OfLayer(int layer) {
  const bool known = layer >= 0 && static_cast<std::size_t>(layer) < cache_of_layer_.size();
  const int inner = known ? cache_of_layer_[layer] : chosen_;
  const bool exists = inner >= 0 && static_cast<std::size_t>(inner) < caches_.size();
  return exists ? caches_[inner]->OfLayer(layer) : *this;
}

Status WrapperCache::CheckChosen() const {
  if (chosen_ != kNone) return Status::Ok();
  return Invalid(StrCat("no cache is selected; SetLayerType must be in [0, ", caches_.size(), ")"));
}

// An error of the first cache may be kInvalidArgument, because nothing has changed. After an error of
// a later cache no cache keeps a draft, so kInvalidArgument becomes kInternal.
Status WrapperCache::PrepareAccept(std::span<const std::int32_t> last) {
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

Status WrapperCache::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->Put(k, v);
}

Result<DenseKv> WrapperCache::Get() {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->Get();
}

Result<LayerKv> WrapperCache::Storage() {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->Storage();
}

Status WrapperCache::FindCells(SequenceId sequence, Position begin, Position end,
                               std::vector<HistoryRun>& runs) const {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->FindCells(sequence, begin, end, runs);
}

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

Status WrapperCache::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  Status status = ForAll([&](Cache& cache) { return cache.Remove(sequence, begin, end); });
  if (!status.ok()) CancelCaptures(sequence);  // the caches may differ now
  return status;
}

// Goes on after an error, because the pass must end in each cache.
Status WrapperCache::Compact() {
  Status first;
  for (const auto& cache : caches_) {
    Status status = cache->Compact();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

std::unique_ptr<Cache> MakeWrapperCache(WrapperOptions options) {
  return std::make_unique<WrapperCache>(std::move(options));
}

}  // namespace kvcache
