#include "support/wrapper_twin.h"

#include <algorithm>

#include "kvcache/wrapper_cache.h"

namespace kvcache::testing {

std::unique_ptr<Cache> WrapperTwin::MakeCache(ReferenceBackend& backend) {
  WrapperOptions options;
  for (const auto& twin : twins_) {
    options.caches.push_back(twin->MakeCache(backend));
    caches_.push_back(options.caches.back().get());
  }
  auto cache = MakeWrapperCache(std::move(options));
  cache_ = cache.get();
  return cache;
}

StatusCode WrapperTwin::Prepare(const TestBatch& batch, ForwardMode mode) const {
  return FirstError([&](const CacheTwin& twin) { return twin.Prepare(batch, mode); });
}

StatusCode WrapperTwin::CheckKeep(const std::vector<int>& last) const {
  return FirstError([&](const CacheTwin& twin) { return twin.CheckKeep(last); });
}

StatusCode WrapperTwin::CheckCopy(int src, int dst, Position length) const {
  return FirstError([&](const CacheTwin& twin) { return twin.CheckCopy(src, dst, length); });
}

StatusCode WrapperTwin::CheckRemove(int sequence, Position begin, Position end) const {
  return FirstError([&](const CacheTwin& twin) { return twin.CheckRemove(sequence, begin, end); });
}

bool WrapperTwin::CanResume(int sequence, Position position) const {
  return std::all_of(twins_.begin(), twins_.end(),
                     [&](const auto& twin) { return twin->CanResume(sequence, position); });
}

bool WrapperTwin::CanGoBackTo(int sequence, Position length) const {
  return std::all_of(twins_.begin(), twins_.end(),
                     [&](const auto& twin) { return twin->CanGoBackTo(sequence, length); });
}

void WrapperTwin::Begin(const TestBatch& batch, ForwardMode mode) {
  for (const auto& twin : twins_) twin->Begin(batch, mode);
}

void WrapperTwin::SetNonCausal(const std::vector<int>& queries) {
  for (const auto& twin : twins_) twin->SetNonCausal(queries);
}

void WrapperTwin::Keep(const std::vector<int>& last) {
  for (const auto& twin : twins_) twin->Keep(last);
}

void WrapperTwin::Copy(int src, int dst, Position length) {
  for (const auto& twin : twins_) twin->Copy(src, dst, length);
}

void WrapperTwin::Remove(int sequence, Position begin, Position end) {
  for (const auto& twin : twins_) twin->Remove(sequence, begin, end);
}

void WrapperTwin::PrepareRestore(int sequence, Position length) {
  for (const auto& twin : twins_) twin->PrepareRestore(sequence, length);
}

void WrapperTwin::EndPass() {
  for (const auto& twin : twins_) twin->EndPass();
}

Status WrapperTwin::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  for (std::size_t i = 0; i < twins_.size(); ++i) {
    cache.SetLayerType(static_cast<int>(i));
    KVCACHE_RETURN_IF_ERROR(twins_[i]->RunPass(cache, batch, step));
  }
  return Status::Ok();
}

Difference WrapperTwin::Check() {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < twins_.size(); ++i) {
    if (Difference difference = twins_[i]->Check()) {
      return "cache " + std::to_string(i) + " of the wrapper: " + *difference;
    }
    bytes += caches_[i]->AllocatedBytes();
    cache_->SetLayerType(static_cast<int>(i));
    if (&cache_->Visible() != &caches_[i]->Visible()) return "another cache is chosen";
  }
  return cache_->AllocatedBytes() == bytes ? Difference() : "the sum of AllocatedBytes";
}

// The attention's, where there is one: it says what can be removed.
Position WrapperTwin::length(int sequence) const {
  Position length = 0;
  for (const auto& twin : twins_) length = std::max(length, twin->length(sequence));
  return length;
}

unsigned WrapperTwin::reached() const {
  unsigned reached = 0;
  for (const auto& twin : twins_) reached |= twin->reached();
  return reached;
}

bool WrapperTwin::wants_even_batches() const {
  return std::any_of(twins_.begin(), twins_.end(),
                     [](const auto& twin) { return twin->wants_even_batches(); });
}

}  // namespace kvcache::testing
