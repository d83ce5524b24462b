#include "cache/wrapper/wrapper_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvcache {

WrapperMemory::WrapperMemory(const std::vector<std::unique_ptr<Cache>>& caches) {
  for (const auto& cache : caches) parts_.push_back(cache->memory());
}

std::int64_t WrapperMemory::SumOf(std::int64_t (CacheMemory::*bytes)() const) const {
  std::int64_t sum = 0;
  for (const CacheMemory* const part : parts_) sum += (part->*bytes)();
  return sum;
}

std::int64_t WrapperMemory::FreeCells() const {
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const CacheMemory* const part : parts_) fewest = std::min(fewest, part->FreeCells());
  return fewest;
}

std::int64_t WrapperMemory::GrowthOf(std::span<const SequenceLength> more, int captures,
                                     int rounds) const {
  std::int64_t sum = 0;
  for (const CacheMemory* const part : parts_) sum += part->GrowthOf(more, captures, rounds);
  return sum;
}

Status WrapperMemory::ReleaseFreeMemory() {
  for (CacheMemory* const part : parts_) KVCACHE_RETURN_IF_ERROR(part->ReleaseFreeMemory());
  return Status::Ok();
}

// Continues after an error, because the pass must end in each cache.
Status WrapperMemory::Compact() {
  Status first;
  for (CacheMemory* const part : parts_) {
    Status status = part->Compact();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace kvcache
