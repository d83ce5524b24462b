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

Status WrapperReference::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  for (std::size_t i = 0; i < references_.size(); ++i) {
    cache.SetLayerType(static_cast<int>(i));
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
    bytes += caches_[i]->AllocatedBytes();
    cache_->SetLayerType(static_cast<int>(i));
    if (&cache_->Visible() != &caches_[i]->Visible()) {
      return "SetLayerType(" + std::to_string(i) + ") selected another cache";
    }
  }
  return cache_->AllocatedBytes() == bytes
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
