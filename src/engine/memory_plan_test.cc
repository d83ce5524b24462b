#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "kvcache/store.h"

namespace kvcache::memory_plan_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::optional<std::int64_t> Free() {
  return 4000 * kMiB;
}

TEST(MemoryPlan, CachesHaveHalfOfTheFreeMemoryWithoutABudget) {
  const MemoryPlan plan(0, MemoryPlan::MemoryStore::kUsed, Free);
  EXPECT_EQ(plan.CacheBudget(), 0) << "they follow the machine";
  EXPECT_EQ(plan.PoolBytes(), 2000 * kMiB);
  EXPECT_EQ(plan.WeightBytes(), 2000 * kMiB);
  EXPECT_EQ(plan.StoreBytes(), kDefaultMemoryStoreBytes);
}

TEST(MemoryPlan, NothingIsDividedThatIsNotKnown) {
  const MemoryPlan plan(0, MemoryPlan::MemoryStore::kNone, [] { return std::nullopt; });
  EXPECT_EQ(plan.PoolBytes(), 0);
  EXPECT_EQ(plan.WeightBytes(), 0);
  EXPECT_EQ(plan.DraftBytes(1, 0), 1);
}

TEST(MemoryPlan, ABudgetIsForCachesAndAStoreInMemory) {
  struct Case {
    std::int64_t budget;
    std::int64_t store;
  };
  for (const auto& [budget, store] : {Case{4 * kMiB, kMiB}, Case{1000 * kMiB, 250 * kMiB},
                                      Case{8000 * kMiB, kDefaultMemoryStoreBytes}}) {
    const MemoryPlan without(budget, MemoryPlan::MemoryStore::kNone, Free);
    EXPECT_EQ(without.CacheBudget(), budget);
    EXPECT_EQ(without.PoolBytes(), budget) << "whatever is free";
    const MemoryPlan with(budget, MemoryPlan::MemoryStore::kUsed, Free);
    EXPECT_EQ(with.StoreBytes(), store);
    EXPECT_EQ(with.CacheBudget(), budget - store);
    EXPECT_EQ(with.WeightBytes(), 2000 * kMiB);
  }
}

TEST(MemoryPlan, ModelsHaveEqualPartsAndADraftModelAtMostHalfOfOne) {
  EXPECT_EQ(MemoryPlan::PartOf(0, 3), 0);
  EXPECT_EQ(MemoryPlan::PartOf(90, 3), 30);
  EXPECT_EQ(MemoryPlan::PartOf(2, 3), 1);
  const MemoryPlan plan(90, MemoryPlan::MemoryStore::kNone, Free);
  EXPECT_EQ(plan.DraftBytes(3, 0), 15);
  EXPECT_EQ(plan.DraftBytes(3, 20), 10) << "the model keeps what a request needs";
  EXPECT_EQ(plan.DraftBytes(3, 40), 1);
}

}  // namespace
}  // namespace kvcache::memory_plan_test
