// A wrapper's calls for memory: sums over its caches.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {

class WrapperMemory final : public CacheMemory {
 public:
  // Used only if all caches have these calls.
  explicit WrapperMemory(const std::vector<std::unique_ptr<Cache>>& caches);

  std::int64_t AllocatedBytes() const override { return SumOf(&CacheMemory::AllocatedBytes); }
  std::int64_t UsedBytes() const override { return SumOf(&CacheMemory::UsedBytes); }
  std::int64_t ResidentBytes() const override { return SumOf(&CacheMemory::ResidentBytes); }
  std::int64_t FreeCells() const override;
  std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                        int rounds) const override;
  Status ReleaseFreeMemory() override;
  Status Compact() override;

 private:
  std::int64_t SumOf(std::int64_t (CacheMemory::*bytes)() const) const;

  std::vector<CacheMemory*> parts_;  // [caches]
};

}  // namespace kvcache
