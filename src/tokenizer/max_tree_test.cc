#include "tokenizer/max_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvcache::max_tree_test {
namespace {

TEST(MaxTreeTest, MatchesLinearSearch) {
  std::mt19937_64 random(1);
  for (const std::uint32_t count : {1u, 2u, 7u, 8u, 9u, 63u, 64u, 65u, 513u, 5000u}) {
    std::vector<std::uint64_t> numbers(count);
    for (auto& number : numbers) number = random() % 50;
    MaxTree tree;
    tree.Build(numbers);
    for (int change = 0; change < 2000; ++change) {
      ASSERT_EQ(tree.Max(), *std::max_element(numbers.begin(), numbers.end())) << count;
      const auto i = static_cast<std::uint32_t>(random() % count);
      numbers[i] = random() % 4 == 0 ? random() % 60 : 0;
      tree.Set(i, numbers[i]);
    }
  }
}

TEST(MaxTreeTest, EmptyTreeReturnsZero) {
  MaxTree tree;
  tree.Build({});
  EXPECT_EQ(tree.Max(), 0u);
}

}  // namespace
}  // namespace kvcache::max_tree_test
