#include "kvcache/causal_cache.h"

#include <memory>
#include <new>
#include <utility>

#include "cache/causal/causal_cache_impl.h"

namespace kvcache {

Status CausalCache::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckInit(backend, options));
  try {
    parts_.Reset(backend, options);
    pass_.Reset(options.max_batch);
    sequences_.Reset(options.max_sequences);
  } catch (const std::bad_alloc&) {
    parts_.Clear();
    pass_.Clear();
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + SizesText(options)};
  }
  parts_.Open(backend, options);
  return Status::Ok();
}

void CausalCache::Close() {
  pass_.End();
  snapshots_.Clear();
  pass_.Clear();
  parts_.Close();
}

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options) {
  return std::make_unique<CausalCache>(std::move(options));
}

}  // namespace kvcache
