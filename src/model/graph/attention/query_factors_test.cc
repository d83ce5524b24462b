#include "model/graph/attention/query_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvcache::query_factors_test {
namespace {

TEST(QueryFactorsTest, GrowByEachLengthOfPositions) {
  QueryFactors factors(0.5, 8, 0);
  ASSERT_TRUE(factors.Reserve(4).ok());
  const std::vector<Position> positions = {0, 7, 8, 31};
  const auto at = factors.At(positions);
  ASSERT_EQ(at.size(), positions.size());
  EXPECT_EQ(at[0], 1.0f);
  EXPECT_EQ(at[1], 1.0f);
  EXPECT_EQ(at[2], static_cast<float>(1.0 + 0.5 * std::log(2.0)));
  EXPECT_EQ(at[3], static_cast<float>(1.0 + 0.5 * std::log(4.0)));
}

TEST(QueryFactorsTest, OffsetMovesTheSteps) {
  QueryFactors factors(0.5, 8, 1);
  ASSERT_TRUE(factors.Reserve(2).ok());
  const std::vector<Position> positions = {6, 7};
  const auto at = factors.At(positions);
  EXPECT_EQ(at[0], 1.0f);
  EXPECT_EQ(at[1], static_cast<float>(1.0 + 0.5 * std::log(2.0)));
}

}  // namespace
}  // namespace kvcache::query_factors_test
