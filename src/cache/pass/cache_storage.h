// The parts that are the same in all kinds that store K and V: the configuration, the life cycle,
// the selected layer, and the layers' bytes.
//
// Thread safety: none.
#pragma once

#include <cstdint>

#include "cache/cache_checks.h"
#include "cache/pass/layer_store.h"
#include "kvcache/cache.h"

namespace kvcache {

class CacheStorage {
 public:
  // Returns the configuration that Init sets.
  static CacheConfig ConfigFor(const KvBackend& backend, const CacheOptions& options) {
    return options.config.value_or(backend.preferred_cache_config());
  }
  // Returns the errors of Init that all kinds share, except CheckTypes's.
  Status CheckInit(const KvBackend& backend, const CacheOptions& options) const;
  // Opens the cache with `cells` cells per layer. REQUIRES: CheckInit and CheckTypes returned Ok;
  // `cells` is a multiple of kCellTile.
  void Open(KvBackend& backend, const CacheOptions& options, std::int64_t cells);
  void Close();

  bool ready() const { return state_ == CacheState::kReady; }
  Status CheckReady() const { return kvcache::CheckReady(state_); }
  // Returns kInvalidArgument unless the cache is open and has the sequence.
  Status CheckKnown(SequenceId id) const {
    KVCACHE_RETURN_IF_ERROR(CheckReady());
    return CheckSequence(id, options_);
  }
  // REQUIRES, here and below: the cache has been opened.
  KvBackend& backend() const { return *backend_; }
  const CacheConfig& config() const { return config_; }
  const CacheOptions& options() const { return options_; }

  void SetLayer(int layer) { layer_ = layer; }
  const LayerStore& layers() const { return layers_; }
  // Returns the selected layer's storage; allocates it if it has none.
  Result<LayerKv> Ensure(const KvShape& shape) { return layers_.Ensure(layer_, shape); }
  Result<LayerKv> EnsureLayer(int layer, const KvShape& shape) {
    return layers_.Ensure(layer, shape);
  }
  Status Release(const CellRun& run) { return layers_.Release(run); }
  // As Cache::Storage.
  Result<LayerKv> Storage() const;
  // Returns the selected layer's storage, or the error of Cache::Get.
  Result<LayerKv> StorageForGet(bool in_pass) const;

 private:
  CacheState state_ = CacheState::kNew;
  CacheConfig config_;
  CacheOptions options_;
  KvBackend* backend_ = nullptr;
  LayerStore layers_;
  int layer_ = 0;
};

}  // namespace kvcache
