#include "platform/settled_file.h"

#include <gtest/gtest.h>

#include "platform/wall_clock.h"

namespace kvcache::settled_file_test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(SettledFile, AFileSettlesTwoSecondsAfterBothTimes) {
  const WallClockForTests clock([] { return 100 * kSecond; });
  const auto settles = [](std::int64_t modified_ns, std::int64_t changed_ns) {
    return IsSettled({.inode = 1, .modified_ns = modified_ns, .changed_ns = changed_ns});
  };
  EXPECT_TRUE(settles(98 * kSecond - 1, 98 * kSecond - 1));
  EXPECT_FALSE(settles(98 * kSecond, 98 * kSecond - 1));
  EXPECT_FALSE(settles(98 * kSecond - 1, 98 * kSecond));
  EXPECT_FALSE(settles(200 * kSecond, 0));
  EXPECT_FALSE(IsSettled({}));
}

}  // namespace
}  // namespace kvcache::settled_file_test
