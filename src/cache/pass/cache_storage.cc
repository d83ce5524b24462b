#include "cache/pass/cache_storage.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

Status CacheStorage::CheckInit(const KvBackend& backend, const CacheOptions& options) const {
  if (state_ != CacheState::kNew) return Invalid("Init was already called; make a new cache");
  KVCACHE_RETURN_IF_ERROR(CheckConfig(ConfigFor(backend, options)));
  return CheckSizes(options);
}

void CacheStorage::Open(KvBackend& backend, const CacheOptions& options, std::int64_t cells) {
  config_ = ConfigFor(backend, options);
  options_ = options;
  backend_ = &backend;
  LayerKv prototype;
  prototype.k_type = options.k_type;
  prototype.v_type = options.v_type;
  prototype.layout = config_.layout;
  prototype.v_transposed = config_.v_transposed;
  prototype.cells = cells;
  CellMemory* const memory =
      options.releases_memory ? dynamic_cast<CellMemory*>(&backend) : nullptr;
  layers_.Reset(backend, prototype, memory);
  state_ = CacheState::kReady;
}

void CacheStorage::Close() {
  state_ = CacheState::kClosed;
  layers_ = {};
  backend_ = nullptr;
}

Result<LayerKv> CacheStorage::Storage() const {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  if (const LayerKv* storage = layers_.Find(layer_); storage != nullptr) return *storage;
  return NotFound(StrCat("layer ", layer_, " has no storage; call Put for it first"));
}

Result<LayerKv> CacheStorage::StorageForGet(bool in_pass) const {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, Storage());
  if (!in_pass) return Invalid("Get outside a forward pass; call StartForward first");
  if (config_.layout == KvLayout::kPlain) return storage;
  return Unsupported(
      "Get needs the plain layout, and the cache has the backend's tiled layout; set "
      "CacheOptions::config to CacheConfig{}");
}

}  // namespace kvcache
