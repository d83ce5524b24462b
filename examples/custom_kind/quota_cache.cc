#include "quota_cache.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace example {

using kvcache::Status;
using kvcache::StatusCode;

// The quota comes first: after the inner cache has started the pass, it can no longer be refused.
Status QuotaCache::StartForward(const kvcache::Batch& batch, kvcache::ForwardMode mode) {
  const bool computes = mode == kvcache::ForwardMode::kCompute;
  const std::size_t tokens = computes ? std::min(batch.size(), batch.sequences.size()) : 0;
  for (std::size_t i = 0; i < tokens; ++i) {
    if (Allows(batch.positions[i])) continue;
    return {StatusCode::kCacheFull,
            "position " + std::to_string(batch.positions[i]) + " of sequence " +
                std::to_string(kvcache::Index(batch.sequences[i])) + " exceeds the quota of " +
                std::to_string(quota_) + " tokens"};
  }
  return inner_->StartForward(batch, mode);
}

}  // namespace example
