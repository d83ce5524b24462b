#include "quota_cache.h"

#include <string>

namespace example {

using kvcache::Status;
using kvcache::StatusCode;

// What was prepared inside and is not begun has changed nothing: that is the contract.
Status QuotaCache::PrepareForward(const kvcache::Batch& batch, kvcache::ForwardMode mode) {
  KVCACHE_RETURN_IF_ERROR(inner_->PrepareForward(batch, mode));
  if (mode == kvcache::ForwardMode::kReserve) return Status::Ok();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (Allows(batch.positions[i])) continue;
    return {StatusCode::kCacheFull,
            "sequence " + std::to_string(kvcache::Index(batch.sequences[i])) + " may hold " +
                std::to_string(quota_) + " tokens, position " + std::to_string(batch.positions[i]) +
                " is beyond"};
  }
  return Status::Ok();
}

}  // namespace example
