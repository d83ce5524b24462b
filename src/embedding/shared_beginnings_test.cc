#include "embedding/shared_beginnings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvcache::shared_beginnings_test {
namespace {

using Inputs = std::vector<std::vector<std::int32_t>>;

constexpr SharingLimits kAll = {.min_saved_tokens = 1, .max_depth = 8};

TEST(SharedBeginnings, AreATree) {
  const Inputs inputs = {{1, 2, 3, 4, 5}, {1, 2, 3, 9}, {7}, {1, 2, 3, 4, 6}};
  const SharedBeginning root = FindSharedBeginnings(inputs, kAll);
  EXPECT_EQ(root.end, 0u);
  EXPECT_EQ(root.leaves, std::vector<std::size_t>{2});
  ASSERT_EQ(root.children.size(), 1u);
  const SharedBeginning& three = root.children[0];
  EXPECT_EQ(three.begin, 0u);
  EXPECT_EQ(three.end, 3u);
  EXPECT_EQ(three.leaves, std::vector<std::size_t>{1});
  ASSERT_EQ(three.children.size(), 1u);
  EXPECT_EQ(three.children[0].begin, 3u);
  EXPECT_EQ(three.children[0].end, 4u);
  EXPECT_EQ(three.children[0].leaves, (std::vector<std::size_t>{0, 3}));
}

TEST(SharedBeginnings, EndWithEqualInputs) {
  const Inputs inputs = {{1, 2}, {1, 2}, {1, 2, 3}};
  const SharedBeginning root = FindSharedBeginnings(inputs, kAll);
  ASSERT_EQ(root.children.size(), 1u);
  EXPECT_EQ(root.children[0].end, 2u);
  EXPECT_EQ(root.children[0].leaves, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(SharedBeginnings, NeedToSaveEnough) {
  const Inputs inputs = {{1, 2, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4, 6}};
  // Three tokens twice, and one token once more.
  EXPECT_EQ(FindSharedBeginnings(inputs, {.min_saved_tokens = 7}).children.size(), 0u);
  const SharedBeginning root = FindSharedBeginnings(inputs, {.min_saved_tokens = 6});
  ASSERT_EQ(root.children.size(), 1u);
  EXPECT_EQ(root.children[0].end, 3u);
  EXPECT_TRUE(root.children[0].children.empty());
  // The parts of a group that saves too little may save more.
  const Inputs pairs = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 7}, {1, 8}};
  const SharedBeginning of_pairs = FindSharedBeginnings(pairs, {.min_saved_tokens = 5});
  ASSERT_EQ(of_pairs.children.size(), 1u);
  EXPECT_EQ(of_pairs.children[0].end, 5u);
  EXPECT_EQ(of_pairs.leaves, std::vector<std::size_t>{2});
}

// Checks that a node's inputs begin with its tokens, and counts the inputs.
void Check(const Inputs& inputs, const SharedBeginning& node, const SharingLimits& limits,
           int depth, std::vector<int>& seen) {
  const std::vector<std::int32_t>& own = inputs[node.input];
  ASSERT_LE(node.end, own.size());
  ASSERT_LE(depth, limits.max_depth);
  for (const std::size_t leaf : node.leaves) {
    ++seen[leaf];
    ASSERT_TRUE(std::equal(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(node.end),
                           inputs[leaf].begin()));
  }
  for (const SharedBeginning& child : node.children) {
    ASSERT_EQ(child.begin, node.end);
    ASSERT_GT(child.end, child.begin);
    ASSERT_TRUE(std::equal(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(node.end),
                           inputs[child.input].begin()));
    Check(inputs, child, limits, depth + 1, seen);
  }
}

TEST(SharedBeginnings, HoldEachInputOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Inputs inputs(1 + random() % 30);
    for (auto& input : inputs) {
      input.resize(1 + random() % 12);
      for (std::int32_t& token : input) token = static_cast<std::int32_t>(random() % 2);
    }
    const SharingLimits limits = {.min_saved_tokens = 1 + random() % 6,
                                  .max_depth = static_cast<int>(random() % 4)};
    std::vector<int> seen(inputs.size(), 0);
    Check(inputs, FindSharedBeginnings(inputs, limits), limits, 0, seen);
    EXPECT_EQ(seen, std::vector<int>(inputs.size(), 1));
  }
}

TEST(SharedBeginnings, ServeInputsThatEachContinueAnother) {
  Inputs inputs;
  for (std::size_t i = 1; i <= 2000; ++i) inputs.emplace_back(i, 5);
  std::vector<int> seen(inputs.size(), 0);
  Check(inputs, FindSharedBeginnings(inputs, {}), {}, 0, seen);
  EXPECT_EQ(seen, std::vector<int>(inputs.size(), 1));
}

}  // namespace
}  // namespace kvcache::shared_beginnings_test
