// The bytes that a causal cache takes, and gives back to the system (kvcache/cache_memory.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>

#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"
#include "kvcache/cache_memory.h"

namespace kvcache {

class CausalMemory final : public CacheMemory {
 public:
  // Both must outlive this.
  CausalMemory(CausalParts& parts, CausalPass& pass) : parts_(parts), pass_(pass) {}

  std::int64_t AllocatedBytes() const override { return parts_.storage.layers().allocated_bytes(); }
  std::int64_t UsedBytes() const override;
  std::int64_t ResidentBytes() const override;
  std::int64_t FreeCells() const override;
  std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                        int rounds) const override;
  Status ReleaseFreeMemory() override;
  Status Compact() override;

 private:
  std::int64_t SnapshotBytes() const {
    return parts_.pool == nullptr ? 0 : parts_.pool->host().bytes;
  }
  std::int64_t BlockBytes() const;
  // Returns whether memory can go back to the system.
  bool releases() const { return parts_.storage.layers().releasable_cells() > 0; }

  CausalParts& parts_;
  CausalPass& pass_;
};

}  // namespace kvcache
