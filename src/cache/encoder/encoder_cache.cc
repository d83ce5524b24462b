#include "kvcache/encoder_cache.h"

#include <memory>
#include <new>

#include "cache/encoder/encoder_cache_impl.h"

namespace kvcache {

Status EncoderCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckInit(backend, options));
  try {
    parts_.Reset(options);
    pass_.Reset(options);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + SizesText(options)};
  }
  parts_.Open(backend, options);
  return Status::Ok();
}

void EncoderCacheImpl::Close() {
  pass_.End();
  parts_.Close();
}

std::unique_ptr<EncoderCache> MakeEncoderCache(const EncoderOptions& options) {
  return std::make_unique<EncoderCacheImpl>(options);
}

}  // namespace kvcache
