#include "engine/likeliest_logit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace kvcache {
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

TEST(LikeliestLogit, ItsChanceIsThatOfASoftmax) {
  std::mt19937 random(2);
  for (const std::size_t size : {1, 2, 63, 64, 65, 500}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = static_cast<float>(random() % 1000) / 40.0f;
    const float best = logits[LikeliestLogit(logits)];
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit - best));
    EXPECT_NEAR(ChanceOfLikeliest(logits, best), 1.0 / sum, 1e-4) << size;
  }
  EXPECT_EQ(ChanceOfLikeliest(std::vector<float>(5, NAN), NAN), 0.0);
}

}  // namespace
}  // namespace kvcache
