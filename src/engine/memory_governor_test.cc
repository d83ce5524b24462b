#include "engine/memory_governor.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

TEST(MemoryGovernorTest, WithoutAShareTheBudgetIsFixed) {
  MemoryGovernor fixed(100, 0.0, [] { return 10; });
  EXPECT_EQ(fixed.Budget(0, {}), 100);
  MemoryGovernor none(0, 0.0, [] { return 10; });
  EXPECT_EQ(none.Budget(0, {}), MemoryGovernor::kNoLimit);
}

TEST(MemoryGovernorTest, ItShrinksAtOnceAndGrowsSlowly) {
  std::int64_t available = 1000;
  int reads = 0;
  MemoryGovernor governor(400, 0.5, [&] {
    ++reads;
    return available;
  });
  MemoryGovernor::Clock::time_point now{};
  EXPECT_EQ(governor.Budget(200, now), 400);
  available = 0;
  EXPECT_EQ(governor.Budget(200, now), 400);
  EXPECT_EQ(reads, 1);
  now += MemoryGovernor::kInterval;
  EXPECT_EQ(governor.Budget(200, now), 100);
  available = 420;
  now += MemoryGovernor::kInterval;
  EXPECT_EQ(governor.Budget(100, now), 110);
}

}  // namespace
}  // namespace kvcache
