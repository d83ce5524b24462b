// The wrapper cache's class.
//
//   WrapperCacheImpl ── WrapperSnapshots      the calls of all caches' snapshots()
//                    ├─ WrapperTransactions   of all caches' transactions()
//                    └─ WrapperMemory         of all caches' memory()
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/two_phase.h"
#include "cache/wrapper/wrapper_memory.h"
#include "cache/wrapper/wrapper_snapshots.h"
#include "cache/wrapper/wrapper_transactions.h"
#include "kvcache/wrapper_cache.h"

namespace kvcache {

class WrapperCacheImpl final : public WrapperCache, public TwoPhaseCache {
 public:
  explicit WrapperCacheImpl(WrapperOptions options);

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status StartForward(const Batch& batch, ForwardMode mode) override;
  Status PrepareForward(const Batch& batch, ForwardMode mode) override;
  void BeginForward() override;
  void EndPass() override;
  void SetLayer(int layer) override;
  void SetLayerType(int type) override;
  Cache& OfLayer(int layer) override;
  Status SetCausal(std::span<const std::int32_t> except) override;
  Status Put(const TensorView& k, const TensorView& v) override;
  Result<DenseKv> Get() override;
  Result<LayerKv> Storage() override;
  const Visibility& Visible() const override;
  Status AcceptDrafts(std::span<const std::int32_t> last) override;
  Status PrepareAccept(std::span<const std::int32_t> last) override;
  void FinishAccept() override;
  bool has_halves() const override { return AllHaveHalves(parts_); }

  Position Length(SequenceId sequence) const override;
  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override;
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override;
  Status Remove(SequenceId sequence, Position begin, Position end) override;
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override;
  Status EvictWindow(SequenceId sequence) override;

 private:
  static constexpr int kNone = -1;

  static CacheCapabilities Capabilities(const std::vector<std::unique_ptr<Cache>>& caches,
                                        WrapperCacheImpl* wrapper);
  Status CheckHalves() const;
  Status CheckChosen() const;
  // What an error of parts_[i] in AcceptDrafts means for the wrapper.
  Status AcceptFailed(std::size_t i, Status status);

  template <typename Call>
  Status ForAll(const Call& call) const {
    for (const auto& cache : caches_) KVCACHE_RETURN_IF_ERROR(call(*cache));
    return Status::Ok();
  }

  std::vector<std::unique_ptr<Cache>> caches_;
  std::vector<PassPart> parts_;  // [caches]
  std::vector<int> cache_of_layer_;
  int chosen_ = 0;  // of caches_, or kNone
  Visibility nothing_;
  WrapperSnapshots snapshots_;
  WrapperTransactions transactions_;
  WrapperMemory memory_;
};

}  // namespace kvcache
