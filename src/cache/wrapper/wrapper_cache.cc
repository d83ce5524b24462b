#include "kvcache/wrapper_cache.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/cache_checks.h"
#include "cache/wrapper/wrapper_cache_impl.h"

namespace kvcache {
namespace {

using Caches = std::vector<std::unique_ptr<Cache>>;

// Returns `own` if `part` of every cache is there, else null.
template <typename Own, typename Part>
Own* IfAllHave(const Caches& caches, Part* (Cache::*part)(), Own* own) {
  const bool all = std::all_of(caches.begin(), caches.end(),
                               [&](const auto& cache) { return (*cache.*part)() != nullptr; });
  return all ? own : nullptr;
}

template <typename Part>
Part* FirstOf(const Caches& caches, Part* (Cache::*part)()) {
  for (const auto& cache : caches) {
    if (Part* const found = (*cache.*part)(); found != nullptr) return found;
  }
  return nullptr;
}

std::vector<PassPart> PartsOf(const Caches& caches) {
  std::vector<PassPart> parts;
  for (const auto& cache : caches) parts.emplace_back(cache.get());
  return parts;
}

}  // namespace

CacheCapabilities WrapperCacheImpl::Capabilities(const Caches& caches, WrapperCacheImpl* wrapper) {
  return {.snapshots = IfAllHave(caches, &Cache::snapshots, &wrapper->snapshots_),
          .transactions = IfAllHave(caches, &Cache::transactions, &wrapper->transactions_),
          .memory = IfAllHave(caches, &Cache::memory, &wrapper->memory_),
          .encoder = FirstOf(caches, &Cache::Encoder),
          .recurrent = FirstOf(caches, &Cache::Recurrent),
          .wrapper = wrapper};
}

WrapperCacheImpl::WrapperCacheImpl(WrapperOptions options)
    : WrapperCache(Capabilities(options.caches, this)),
      caches_(std::move(options.caches)),
      parts_(PartsOf(caches_)),
      cache_of_layer_(std::move(options.cache_of_layer)),
      snapshots_(caches_),
      transactions_(caches_),
      memory_(caches_) {
  assert(!caches_.empty());
}

Status WrapperCacheImpl::CheckHalves() const {
  const auto without = std::count_if(parts_.begin(), parts_.end(),
                                     [](const PassPart& part) { return part.halves == nullptr; });
  if (without <= 1) return Status::Ok();
  return Unsupported(StrCat(
      without, " of the wrapper's caches are of kinds outside the library; must be at ", "most 1"));
}

Status WrapperCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckHalves());
  Status status = ForAll([&](Cache& cache) { return cache.Init(backend, options); });
  if (!status.ok()) Close();
  return status;
}

void WrapperCacheImpl::Close() {
  for (const auto& cache : caches_) cache->Close();
}

Status WrapperCacheImpl::StartForward(const Batch& batch, ForwardMode mode) {
  return InHalves<PassPart>(
      parts_, [&](TwoPhaseCache& cache) { return cache.PrepareForward(batch, mode); },
      [&](Cache& cache) { return cache.StartForward(batch, mode); },
      [](TwoPhaseCache& cache) { cache.BeginForward(); });
}

Status WrapperCacheImpl::PrepareForward(const Batch& batch, ForwardMode mode) {
  for (const PassPart& part : parts_) {
    KVCACHE_RETURN_IF_ERROR(part.halves->PrepareForward(batch, mode));
  }
  return Status::Ok();
}

void WrapperCacheImpl::BeginForward() {
  for (const PassPart& part : parts_) part.halves->BeginForward();
}

void WrapperCacheImpl::EndPass() {
  for (const auto& cache : caches_) cache->EndPass();
}

void WrapperCacheImpl::SetLayer(int layer) {
  for (const auto& cache : caches_) cache->SetLayer(layer);
  if (layer >= 0 && static_cast<std::size_t>(layer) < cache_of_layer_.size()) {
    SetLayerType(cache_of_layer_[layer]);
  }
}

void WrapperCacheImpl::SetLayerType(int type) {
  chosen_ = type >= 0 && static_cast<std::size_t>(type) < caches_.size() ? type : kNone;
}

Cache& WrapperCacheImpl::OfLayer(int layer) {
  const bool known = layer >= 0 && static_cast<std::size_t>(layer) < cache_of_layer_.size();
  const int inner = known ? cache_of_layer_[layer] : chosen_;
  const bool exists = inner >= 0 && static_cast<std::size_t>(inner) < caches_.size();
  return exists ? CacheOfLayer(*caches_[inner], layer) : *this;
}

Status WrapperCacheImpl::SetCausal(std::span<const std::int32_t> except) {
  return ForAll([&](Cache& cache) { return cache.SetCausal(except); });
}

Status WrapperCacheImpl::CheckChosen() const {
  if (chosen_ != kNone) return Status::Ok();
  return Invalid(StrCat("no cache is selected; SetLayerType must be in [0, ", caches_.size(), ")"));
}

// An error of the first cache may be kInvalidArgument, because nothing has changed. After an error of
// a later cache no cache keeps a draft, so kInvalidArgument becomes kInternal.
Status WrapperCacheImpl::AcceptFailed(std::size_t i, Status status) {
  const bool refused = status.code() == StatusCode::kInvalidArgument;
  if (refused && i == 0) return status;
  EndPass();
  return refused ? Status(StatusCode::kInternal, status.message()) : status;
}

Status WrapperCacheImpl::PrepareAccept(std::span<const std::int32_t> last) {
  for (std::size_t i = 0, prepared = 0; i < parts_.size(); ++i) {
    if (parts_[i].halves == nullptr) continue;
    Status status = parts_[i].halves->PrepareAccept(last);
    if (!status.ok()) return AcceptFailed(prepared, std::move(status));
    ++prepared;
  }
  return Status::Ok();
}

void WrapperCacheImpl::FinishAccept() {
  for (const PassPart& part : parts_) {
    if (part.halves != nullptr) part.halves->FinishAccept();
  }
}

Status WrapperCacheImpl::AcceptDrafts(std::span<const std::int32_t> last) {
  KVCACHE_RETURN_IF_ERROR(PrepareAccept(last));
  for (const PassPart& part : parts_) {
    if (part.halves != nullptr) continue;
    Status status = part.whole->AcceptDrafts(last);
    if (!status.ok()) return AcceptFailed(parts_.size() - 1, std::move(status));
  }
  FinishAccept();
  return Status::Ok();
}

Status WrapperCacheImpl::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->Put(k, v);
}

Result<DenseKv> WrapperCacheImpl::Get() {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->Get();
}

Result<LayerKv> WrapperCacheImpl::Storage() {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->Storage();
}

const Visibility& WrapperCacheImpl::Visible() const {
  return chosen_ == kNone ? nothing_ : caches_[chosen_]->Visible();
}

Position WrapperCacheImpl::Length(SequenceId sequence) const {
  Position longest = 0;
  for (const auto& cache : caches_) longest = std::max(longest, cache->Length(sequence));
  return longest;
}

Status WrapperCacheImpl::FindCells(SequenceId sequence, Position begin, Position end,
                                   std::vector<HistoryRun>& runs) const {
  KVCACHE_RETURN_IF_ERROR(CheckChosen());
  return caches_[chosen_]->FindCells(sequence, begin, end, runs);
}

// After an error half-way, dst is emptied in all caches, so that they agree.
Status WrapperCacheImpl::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
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

bool WrapperCacheImpl::CanResume(SequenceId sequence, Position position) const {
  return std::all_of(caches_.begin(), caches_.end(),
                     [&](const auto& cache) { return cache->CanResume(sequence, position); });
}

// Asks all caches in turn for the minimum so far, until they agree.
Result<Position> WrapperCacheImpl::PrepareRestore(SequenceId sequence, Position target) {
  Position agreed = std::max(target, 0);
  for (std::size_t agreeing = 0, i = 0; agreeing < caches_.size(); i = (i + 1) % caches_.size()) {
    KVCACHE_ASSIGN_OR_RETURN(const Position kept, caches_[i]->PrepareRestore(sequence, agreed));
    agreeing = kept >= agreed ? agreeing + 1 : 1;
    agreed = std::min(agreed, kept);
  }
  return agreed;
}

Status WrapperCacheImpl::CheckRemove(SequenceId sequence, Position begin, Position end) const {
  return ForAll([&](const Cache& cache) { return cache.CheckRemove(sequence, begin, end); });
}

// After an error half-way the caches may differ, and so may their captures.
Status WrapperCacheImpl::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  Status status = ForAll([&](Cache& cache) { return cache.Remove(sequence, begin, end); });
  for (const auto& cache : caches_) {
    if (status.ok() || cache->snapshots() == nullptr) continue;
    cache->snapshots()->CancelCaptures(sequence);
  }
  return status;
}

Status WrapperCacheImpl::EvictWindow(SequenceId sequence) {
  return ForAll([&](Cache& cache) { return cache.EvictWindow(sequence); });
}

std::unique_ptr<WrapperCache> MakeWrapperCache(WrapperOptions options) {
  return std::make_unique<WrapperCacheImpl>(std::move(options));
}

}  // namespace kvcache
