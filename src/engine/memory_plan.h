// The memory plan: who may take how much of the memory that the machine has free. Each program asks here, and no
// other file names a share.
//
//   free memory                                     --memory-budget BYTES
//   ├─ half: caches of all models (keys, values,    ├─ a quarter, at most 256 MiB: a store in memory, if there is
//   │        states, live requests and prefixes)    │  one
//   └─ half: weights of models that are loaded      └─ the rest: caches
//            beside each other; all else               ├─ equal parts for the models that are loaded
//                                                      └─ of a part at most half: the cache of a draft model
//
// Without a budget the half for caches follows the machine while a scheduler runs (memory_governor.h); pools are made
// for the half that is free when they are made. docs/design/memory.md says why.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace kvcache {

class MemoryPlan {
 public:
  // The part of the free memory that caches may take.
  static constexpr double kFreeShare = 0.5;

  enum class MemoryStore : bool { kNone, kUsed };
  using ReadMemory = std::function<std::optional<std::int64_t>()>;

  // A plan without a budget.
  MemoryPlan() = default;
  // `budget_bytes`: for caches and a store in memory; 0: none. `available`: bytes of free memory, if they are known;
  // empty: AvailableMemory.
  explicit MemoryPlan(std::int64_t budget_bytes, MemoryStore store = MemoryStore::kNone,
                      ReadMemory available = nullptr);

  // Returns the bytes of a store in memory.
  std::int64_t StoreBytes() const;
  // Returns the budget of the caches of all models; 0: there is none, they follow the machine.
  std::int64_t CacheBudget() const;
  // Returns the bytes that pools are made for: the budget, or half of the memory that is free now; 0: unknown.
  std::int64_t PoolBytes() const;
  // Returns the bytes of the weights that may be loaded beside each other; 0: unknown.
  std::int64_t WeightBytes() const { return HalfOfFree(); }
  // Returns the bytes of the cache of a draft model, for one of so many models, which needs `min` bytes itself.
  // At least 1.
  std::int64_t DraftBytes(std::int64_t models, std::int64_t min) const;

  // Returns the part of a budget that each of so many models has, at least 1; 0: there is no budget.
  static std::int64_t PartOf(std::int64_t budget_bytes, std::int64_t models);

 private:
  std::int64_t HalfOfFree() const;

  std::int64_t budget_bytes_ = 0;
  MemoryStore store_ = MemoryStore::kNone;
  ReadMemory available_;
};

}  // namespace kvcache
