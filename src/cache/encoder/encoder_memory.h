// The bytes that an encoder cache takes (kvcache/cache_memory.h). It gives none back before Close.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"
#include "kvcache/cache_memory.h"

namespace kvcache {

class EncoderMemory final : public CacheMemory {
 public:
  // Both must outlive this.
  EncoderMemory(EncoderParts& parts, EncoderPass& pass) : parts_(parts), pass_(pass) {}

  std::int64_t AllocatedBytes() const override { return parts_.storage.layers().allocated_bytes(); }
  std::int64_t UsedBytes() const override {
    return AllocatedBytes() + (parts_.pool == nullptr ? 0 : parts_.pool->host().bytes);
  }
  std::int64_t ResidentBytes() const override {
    return UsedBytes() + (parts_.pool == nullptr ? 0 : parts_.pool->host().memory.spare_bytes());
  }
  std::int64_t FreeCells() const override { return std::numeric_limits<std::int64_t>::max(); }
  std::int64_t GrowthOf(std::span<const SequenceLength> /*more*/, int /*captures*/,
                        int /*rounds*/) const override {
    return 0;
  }
  Status ReleaseFreeMemory() override { return Status::Ok(); }
  // The entries are of one size, and every one stays where it is.
  Status Compact() override {
    KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
    pass_.End();
    return Status::Ok();
  }

 private:
  EncoderParts& parts_;
  EncoderPass& pass_;
};

}  // namespace kvcache
