#include "cache/cells/range_counts.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvcache::range_counts_test {
namespace {

// Compares with an array that is changed cell by cell, over sizes around the blocks' boundaries.
TEST(RangeCountsTest, EqualsAnArrayOfCounts) {
  std::mt19937 random(7);
  for (const std::int32_t cells : {1, 63, 64, 65, 4096, 4097, 9000, 300000}) {
    RangeCounts counts;
    counts.Reset(cells);
    std::vector<std::int32_t> expected(cells, 0);
    for (int step = 0; step < 60; ++step) {
      auto begin = static_cast<std::int32_t>(random() % cells);
      auto end = static_cast<std::int32_t>(random() % (cells + 1));
      if (begin > end) std::swap(begin, end);
      const std::int32_t by = random() % 2 == 0 ? 1 : -1;
      counts.AddRange(begin, end, by);
      for (std::int32_t i = begin; i < end; ++i) expected[i] += by;
      const auto cell = static_cast<std::int32_t>(random() % cells);
      counts.Add(cell, 2);
      expected[cell] += 2;
    }
    for (std::int32_t i = 0; i < cells; ++i) ASSERT_EQ(counts[i], expected[i]) << cells << " " << i;
  }
}

TEST(RangeCountsTest, ResetForgets) {
  RangeCounts counts;
  counts.Reset(200);
  counts.AddRange(0, 200, 3);
  counts.Reset(100);
  for (std::int32_t i = 0; i < 100; ++i) EXPECT_EQ(counts[i], 0);
}

}  // namespace
}  // namespace kvcache::range_counts_test
