// The bytes that a recurrent cache takes, and gives back to the system (kvcache/cache_memory.h).
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"
#include "cache/recurrent/recurrent_rounds.h"
#include "kvcache/cache_memory.h"

namespace kvcache {

class RecurrentMemory final : public CacheMemory {
 public:
  // All must outlive this.
  RecurrentMemory(RecurrentParts& parts, RecurrentPass& pass, RecurrentRounds& rounds)
      : parts_(parts), pass_(pass), rounds_(rounds) {}

  std::int64_t AllocatedBytes() const override {
    return parts_.attention.memory()->AllocatedBytes() + StateBytes();
  }
  std::int64_t UsedBytes() const override;
  std::int64_t ResidentBytes() const override;
  std::int64_t FreeCells() const override { return parts_.attention.memory()->FreeCells(); }
  std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                        int rounds) const override;
  Status ReleaseFreeMemory() override;
  Status Compact() override;

 private:
  // Returns the bytes of states and of inputs.
  std::int64_t StateBytes() const;
  // Returns the host memory of the snapshots' states.
  std::int64_t SnapshotBytes() const {
    return parts_.pool == nullptr ? 0 : parts_.pool->host().bytes;
  }

  RecurrentParts& parts_;
  RecurrentPass& pass_;
  RecurrentRounds& rounds_;
};

}  // namespace kvcache
