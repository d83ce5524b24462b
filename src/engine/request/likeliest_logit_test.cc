#include "engine/request/likeliest_logit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace kvcache::likeliest_logit_test {
namespace {

TEST(LikeliestLogit, IsTheFirstOfTheLargest) {
  std::mt19937 random(1);
  for (std::size_t size = 1; size < 300; ++size) {
    std::vector<float> logits(size);
    // Few values, so that the largest is there several times.
    for (float& logit : logits) logit = static_cast<float>(random() % 40) - 20.0f;
    const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_EQ(LikeliestLogit(logits), static_cast<std::size_t>(expected)) << size;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(LikeliestLogit(std::vector<float>{-infinity, -infinity}), 0u);
  EXPECT_EQ(LikeliestLogit(std::vector<float>(200, NAN)), 0u);
}

}  // namespace
}  // namespace kvcache::likeliest_logit_test
