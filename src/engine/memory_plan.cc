#include "engine/memory_plan.h"

#include <algorithm>
#include <utility>

#include "kvcache/store.h"
#include "platform/system_memory.h"

namespace kvcache {

MemoryPlan::MemoryPlan(std::int64_t budget_bytes, MemoryStore store, ReadMemory available)
    : budget_bytes_(budget_bytes), store_(store), available_(std::move(available)) {}

std::int64_t MemoryPlan::HalfOfFree() const {
  const auto bytes = available_ ? available_() : AvailableMemory();
  return static_cast<std::int64_t>(static_cast<double>(bytes.value_or(0)) * kFreeShare);
}

std::int64_t MemoryPlan::StoreBytes() const {
  return budget_bytes_ > 0 ? std::min(budget_bytes_ / 4, kDefaultMemoryStoreBytes)
                           : kDefaultMemoryStoreBytes;
}

std::int64_t MemoryPlan::CacheBudget() const {
  if (budget_bytes_ == 0) return 0;
  return budget_bytes_ - (store_ == MemoryStore::kUsed ? StoreBytes() : 0);
}

std::int64_t MemoryPlan::PoolBytes() const {
  const std::int64_t budget = CacheBudget();
  return budget > 0 ? budget : HalfOfFree();
}

std::int64_t MemoryPlan::PartOf(std::int64_t budget_bytes, std::int64_t models) {
  return budget_bytes == 0 ? 0 : std::max<std::int64_t>(1, budget_bytes / models);
}

std::int64_t MemoryPlan::DraftBytes(std::int64_t models, std::int64_t min) const {
  const std::int64_t part = PartOf(PoolBytes(), models);
  return std::max<std::int64_t>(1, std::min(part / 2, part - min));
}

}  // namespace kvcache
