#include "kvcache/recurrent_cache.h"

#include <memory>
#include <new>
#include <utility>

#include "cache/recurrent/recurrent_cache_impl.h"

namespace kvcache {

Status RecurrentCacheImpl::SetCheckpoints(const CheckpointOptions& checkpoints) {
  if (parts_.sizes.capacity > 0) return Invalid("SetCheckpoints after Init; call it before");
  parts_.options.checkpoints = checkpoints;
  return Status::Ok();
}

Status RecurrentCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckInit(backend, options));
  try {
    parts_.Reset(backend, options);
    pass_.Reset(options);
    rounds_.Reset(parts_.attention.open_transactions(), parts_.states, options);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory, "no memory for the states of " + SizesText(options)};
  }
  parts_.sizes = options;
  return parts_.attention.Init(backend, options);
}

void RecurrentCacheImpl::Close() {
  parts_.Close();
  pass_.Clear();
}

std::unique_ptr<RecurrentCache> MakeRecurrentCache(RecurrentOptions options) {
  return std::make_unique<RecurrentCacheImpl>(std::move(options));
}

}  // namespace kvcache
