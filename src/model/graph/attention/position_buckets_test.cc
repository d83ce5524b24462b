#include "model/graph/attention/position_buckets.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcache::position_buckets_test {
namespace {

// The buckets of Hugging Face's modeling_t5 with 32 buckets.
TEST(PositionBuckets, NearDistancesHaveTheirOwnAndFarOnesShare) {
  const struct {
    int distance;
    int both_ways;
    int backwards;
  } kCases[] = {
      {0, 0, 0},       {-1, 1, 1},    {-7, 7, 7},    {-8, 8, 8},    {-11, 8, 11},   {-12, 9, 12},
      {-15, 9, 15},    {-16, 10, 16}, {-22, 10, 18}, {-23, 11, 18}, {-32, 12, 21},  {-45, 12, 23},
      {-46, 13, 24},   {-64, 14, 26}, {-90, 14, 29}, {-91, 15, 29}, {-127, 15, 31}, {-128, 15, 31},
      {-1000, 15, 31}, {1, 17, 0},    {7, 23, 0},    {8, 24, 0},    {16, 26, 0},    {64, 30, 0},
      {91, 31, 0},     {1000, 31, 0},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(PositionBucket(c.distance, 32, AttentionDirection::kBidirectional), c.both_ways)
        << c.distance;
    EXPECT_EQ(PositionBucket(c.distance, 32, AttentionDirection::kCausal), c.backwards)
        << c.distance;
  }
}

TEST(PositionBuckets, BiasesAreTablesByDistance) {
  constexpr int kHeads = 3, kBuckets = 8;
  std::vector<float> of_bucket;
  for (int i = 0; i < kHeads * kBuckets; ++i) of_bucket.push_back(static_cast<float>(i));
  for (const AttentionDirection direction :
       {AttentionDirection::kBidirectional, AttentionDirection::kCausal}) {
    const BucketBias bias(of_bucket, kHeads, kBuckets, direction);
    const PositionBias table = bias.bias();
    EXPECT_EQ(table.past, 128);
    EXPECT_EQ(table.future, direction == AttentionDirection::kBidirectional ? 128 : 0);
    const int distances = table.past + 1 + table.future;
    ASSERT_EQ(table.values.size(), static_cast<std::size_t>(kHeads * distances));
    for (int head = 0; head < kHeads; ++head) {
      for (int d = -table.past; d <= table.future; ++d) {
        const int bucket = PositionBucket(d, kBuckets, direction);
        EXPECT_EQ(table.values[static_cast<std::size_t>(head * distances + d + table.past)],
                  static_cast<float>(bucket * kHeads + head));
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::position_buckets_test
