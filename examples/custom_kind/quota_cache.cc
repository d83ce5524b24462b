#include "quota_cache.h"

#include <string>

namespace example {

using kvcache::Status;
using kvcache::StatusCode;

// By contract, a prepared pass of the inner cache that never begins has changed nothing.
Status QuotaCache::PrepareForward(const kvcache::Batch& batch, kvcache::ForwardMode mode) {
  KVCACHE_RETURN_IF_ERROR(inner_->PrepareForward(batch, mode));
  if (mode == kvcache::ForwardMode::kReserve) return Status::Ok();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (Allows(batch.positions[i])) continue;
    return {StatusCode::kCacheFull,
            "position " + std::to_string(batch.positions[i]) + " of sequence " +
                std::to_string(kvcache::Index(batch.sequences[i])) + " exceeds the quota of " +
                std::to_string(quota_) + " tokens"};
  }
  return Status::Ok();
}

}  // namespace example
