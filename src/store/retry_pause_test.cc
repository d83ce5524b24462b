#include "store/retry_pause.h"

#include <gtest/gtest.h>

namespace kvcache::store::retry_pause_test {
namespace {

using std::chrono::milliseconds;

constexpr RetryPause::Clock::time_point kStart{milliseconds(1'000'000)};

TEST(RetryPauseTest, DoublesUpToALimit) {
  RetryPause pause(milliseconds(100), milliseconds(500));
  auto now = kStart;
  EXPECT_EQ(pause.Left(now), milliseconds(0));
  for (const int ms : {100, 200, 400, 500, 500}) {
    pause.Failed(now);
    EXPECT_EQ(pause.Left(now), milliseconds(ms));
    EXPECT_EQ(pause.Left(now + milliseconds(ms - 1)), milliseconds(1));
    now += milliseconds(ms);
    EXPECT_EQ(pause.Left(now), milliseconds(0));
  }
}

TEST(RetryPauseTest, IsOverAtTheFirstSuccess) {
  RetryPause pause(milliseconds(100), milliseconds(500));
  pause.Failed(kStart);
  pause.Failed(kStart + milliseconds(100));
  pause.Worked();
  EXPECT_EQ(pause.Left(kStart + milliseconds(100)), milliseconds(0));
  pause.Failed(kStart + milliseconds(200));
  EXPECT_EQ(pause.Left(kStart + milliseconds(200)), milliseconds(100));
}

TEST(RetryPauseTest, FailuresAtOnceCountOnce) {
  RetryPause pause(milliseconds(100), milliseconds(500));
  for (const int ms : {0, 1, 99}) pause.Failed(kStart + milliseconds(ms));
  EXPECT_EQ(pause.Left(kStart + milliseconds(99)), milliseconds(1));
  pause.Failed(kStart + milliseconds(100));
  EXPECT_EQ(pause.Left(kStart + milliseconds(100)), milliseconds(200));
}

}  // namespace
}  // namespace kvcache::store::retry_pause_test
