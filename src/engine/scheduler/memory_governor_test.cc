#include "engine/scheduler/memory_governor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <new>

namespace kvcache::memory_governor_test {
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

TEST(MemoryGovernorTest, ItCatchesUpAfterAPause) {
  std::int64_t available = 0;
  MemoryGovernor governor(0, 1.0, [&] { return available; });
  MemoryGovernor::Clock::time_point now{};
  EXPECT_EQ(governor.Budget(100, now), 100);
  available = 1'000'000;
  EXPECT_EQ(governor.Budget(100, now + std::chrono::hours(1)), 1'000'100);
}

TEST(MemoryGovernorTest, ItDoesNotShrinkBelowWhatOneRequestNeeds) {
  MemoryGovernor governor(0, 0.5, [] { return 0; });
  governor.SetMin(70);
  EXPECT_EQ(governor.Budget(100, {}), 70);
  MemoryGovernor fixed(50, 0.5, [] { return 0; });
  fixed.SetMin(70);
  EXPECT_EQ(fixed.Budget(100, {}), 50) << "the caller's number is never exceeded";
}

TEST(MemoryGovernorTest, ReadingsThatCannotBeUsedChangeNothing) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  std::int64_t available = kLargest;
  bool throws = false;
  MemoryGovernor governor(0, 1.0, [&] {
    if (throws) throw std::bad_alloc();
    return available;
  });
  MemoryGovernor::Clock::time_point now{};
  EXPECT_EQ(governor.Budget(kLargest, now), kLargest - 1);
  available = 1000;
  EXPECT_EQ(governor.Budget(0, now += MemoryGovernor::kInterval), 1000);
  throws = true;
  EXPECT_EQ(governor.Budget(0, now += MemoryGovernor::kInterval), 1000);
  throws = false;
  available = -1005;  // the machine is that much short
  EXPECT_EQ(governor.Budget(1200, now += MemoryGovernor::kInterval), 195);
}

}  // namespace
}  // namespace kvcache::memory_governor_test
