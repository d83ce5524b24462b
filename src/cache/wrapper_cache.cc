#include "kvcache/wrapper_cache.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "base/strings.h"
#include "cache/cache_checks.h"
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
    return ForAll([&](Cache& cache) { return cache.Remove(sequence, begin, end); });
  }
  Status Compact() override {
    Status first;
    for (const auto& cache : caches_) {  // all caches, even after an error: the pass ends in each
      Status status = cache->Compact();
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

  std::int64_t AllocatedBytes() const override {
    std::int64_t bytes = 0;
    for (const auto& cache : caches_) bytes += cache->AllocatedBytes();
    return bytes;
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

  template <typename Part>
  Part* FirstOf(Part* (Cache::*part)()) {
    for (const auto& cache : caches_) {
      if (Part* found = (*cache.*part)(); found != nullptr) return found;
    }
    return nullptr;
  }

  std::vector<std::unique_ptr<Cache>> caches_;
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

}  // namespace

std::unique_ptr<Cache> MakeWrapperCache(WrapperOptions options) {
  return std::make_unique<WrapperCache>(std::move(options));
}

}  // namespace kvcache
