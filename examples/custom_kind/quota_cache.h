// A custom cache kind: a wrapper of another cache in which no sequence may grow past a quota.
//
// The cells of the causal cache are one pool: a sequence may claim cells that the others do not
// use. That can be unfair between users of one machine. This kind refuses tokens at or past the
// quota.
//
// All other calls go to the inner cache, and its memory() is this kind's. This kind has no snapshots()
// and no transactions(): a snapshot that is restored would bypass the quota.
//
// Thread safety and errors: as in kvcache/cache.h.
#pragma once

#include <memory>
#include <utility>

#include "kvcache/cache.h"

namespace example {

class QuotaCache : public kvcache::Cache {
 public:
  QuotaCache(std::unique_ptr<kvcache::Cache> inner, kvcache::Position quota)
      : Cache({.memory = inner->memory()}), inner_(std::move(inner)), quota_(quota) {}

  // Also returns kCacheFull for a position that the quota does not allow.
  kvcache::Status StartForward(const kvcache::Batch& batch, kvcache::ForwardMode mode) override;
  // Also returns false at or past the quota.
  bool CanResume(kvcache::SequenceId sequence, kvcache::Position position) const override {
    return position < quota_ && inner_->CanResume(sequence, position);
  }

  kvcache::Status Init(kvcache::KvBackend& backend, const kvcache::CacheOptions& options) override {
    return inner_->Init(backend, options);
  }
  void Close() override { inner_->Close(); }
  void EndPass() override { inner_->EndPass(); }
  void SetLayer(int layer) override { inner_->SetLayer(layer); }
  kvcache::Status SetCausal(std::span<const std::int32_t> except) override {
    return inner_->SetCausal(except);
  }
  kvcache::Status Put(const kvcache::TensorView& k, const kvcache::TensorView& v) override {
    return inner_->Put(k, v);
  }
  kvcache::Result<kvcache::DenseKv> Get() override { return inner_->Get(); }
  kvcache::Result<kvcache::LayerKv> Storage() override { return inner_->Storage(); }
  const kvcache::Visibility& Visible() const override { return inner_->Visible(); }
  kvcache::Status AcceptDrafts(std::span<const std::int32_t> last) override {
    return inner_->AcceptDrafts(last);
  }
  kvcache::Position Length(kvcache::SequenceId sequence) const override {
    return inner_->Length(sequence);
  }
  kvcache::Status CopyPrefix(kvcache::SequenceId src, kvcache::SequenceId dst,
                             kvcache::Position length) override {
    return inner_->CopyPrefix(src, dst, length);
  }
  kvcache::Result<kvcache::Position> PrepareRestore(kvcache::SequenceId sequence,
                                                    kvcache::Position target) override {
    return inner_->PrepareRestore(sequence, target);
  }
  kvcache::Status Remove(kvcache::SequenceId sequence, kvcache::Position begin,
                         kvcache::Position end) override {
    return inner_->Remove(sequence, begin, end);
  }
  kvcache::Status CheckRemove(kvcache::SequenceId sequence, kvcache::Position begin,
                              kvcache::Position end) const override {
    return inner_->CheckRemove(sequence, begin, end);
  }
  kvcache::Status EvictWindow(kvcache::SequenceId sequence) override {
    return inner_->EvictWindow(sequence);
  }

 protected:
  // Returns whether a sequence may hold this position.
  virtual bool Allows(kvcache::Position position) const { return position < quota_; }

  std::unique_ptr<kvcache::Cache> inner_;
  kvcache::Position quota_;
};

}  // namespace example
