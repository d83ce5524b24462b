#include "vision/patch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvcache::vision {
namespace {

using ::testing::ElementsAre;

// Returns each row's number of its patch in the order of text.
std::vector<int> PatchesOf(const PatchOrder& order) {
  std::vector<int> patches;
  for (std::size_t i = 0; i < order.rows.size(); ++i) {
    patches.push_back(order.rows[i] * order.grid.columns + order.columns[i]);
  }
  return patches;
}

TEST(PatchOrder, IsThatOfTextForSinglePatches) {
  const auto order = OrderPatches({3, 2}, 1, 0);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(PatchesOf(*order), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(order->tokens, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(order->window_ends, ElementsAre(6));
}

TEST(PatchOrder, PutsThePatchesOfATokenSideBySide) {
  const auto order = OrderPatches({4, 4}, 2, 0);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(PatchesOf(*order), ElementsAre(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  EXPECT_THAT(order->tokens, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order->window_ends, ElementsAre(16));
}

TEST(PatchOrder, PutsTheTokensOfAWindowSideBySide) {
  const auto order = OrderPatches({3, 3}, 1, 2);
  ASSERT_TRUE(order.ok());
  EXPECT_THAT(PatchesOf(*order), ElementsAre(0, 1, 3, 4, 2, 5, 6, 7, 8));
  EXPECT_THAT(order->tokens, ElementsAre(0, 1, 3, 4, 2, 5, 6, 7, 8));
  EXPECT_THAT(order->window_ends, ElementsAre(4, 6, 8, 9));
}

TEST(PatchOrder, HasEachPatchOnce) {
  for (const PictureGrid grid : {PictureGrid{2, 2}, {10, 6}, {22, 34}}) {
    for (const int window : {0, 1, 3, 4, 100}) {
      const auto order = OrderPatches(grid, 2, window);
      ASSERT_TRUE(order.ok());
      std::vector<int> patches = PatchesOf(*order);
      std::ranges::sort(patches);
      ASSERT_EQ(std::ssize(patches), grid.count());
      for (int i = 0; i < grid.count(); ++i) EXPECT_EQ(patches[static_cast<std::size_t>(i)], i);
      EXPECT_EQ(order->window_ends.back(), grid.count());
      EXPECT_TRUE(std::ranges::is_sorted(order->window_ends));
      EXPECT_EQ(std::ssize(order->tokens), grid.count() / 4);
    }
  }
}

}  // namespace
}  // namespace kvcache::vision
