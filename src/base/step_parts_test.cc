#include "base/step_parts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvcache::step_parts_test {
namespace {

// Lets the clock advance by at least a millisecond.
void Wait() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(StepParts, WithoutAnObserverNothingIsCounted) {
  EXPECT_EQ(StepParts::Current(), nullptr);
  { const StepScope scope(StepPart::kCells); }
  EXPECT_EQ(StepParts::Current(), nullptr);
}

TEST(StepParts, TheInnerScopeHasItsTimeAlone) {
  StepParts parts;
  {
    const StepScope outer(StepPart::kChoice);
    const StepScope inner(StepPart::kPlans);
    Wait();
  }
  EXPECT_GE(parts.seconds(StepPart::kPlans), 0.9e-3);
  EXPECT_LT(parts.seconds(StepPart::kChoice), parts.seconds(StepPart::kPlans));
  EXPECT_EQ(parts.seconds(StepPart::kCells), 0.0);
  parts.Clear();
  EXPECT_EQ(parts.seconds(StepPart::kPlans), 0.0);
}

TEST(StepParts, AScopeEndsWithThePartOutside) {
  StepParts parts;
  {
    const StepScope outer(StepPart::kChoice);
    { const StepScope inner(StepPart::kPlans); }
    EXPECT_EQ(parts.Enter(StepPart::kChoice), StepPart::kChoice);
  }
  EXPECT_EQ(parts.Enter(StepPart::kOutside), StepPart::kOutside);
}

TEST(StepParts, OtherThreadsAreNotObserved) {
  StepParts parts;
  EXPECT_EQ(StepParts::Current(), &parts);
  std::thread other([] {
    EXPECT_EQ(StepParts::Current(), nullptr);
    const StepScope scope(StepPart::kDelivery);
    Wait();
  });
  other.join();
  EXPECT_EQ(parts.seconds(StepPart::kDelivery), 0.0);
}

TEST(StepParts, TheLastObserverCounts) {
  StepParts first;
  {
    StepParts second;
    EXPECT_EQ(StepParts::Current(), &second);
  }
  EXPECT_EQ(StepParts::Current(), nullptr);
}

}  // namespace
}  // namespace kvcache::step_parts_test
