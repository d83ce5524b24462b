#include "speculation/lookup_drafter.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kvcache::lookup_drafter_test {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens Proposed(Drafter& drafter, int max) {
  Tokens drafts;
  EXPECT_TRUE(drafter.Propose(max, drafts).ok());
  return drafts;
}

TEST(LookupDrafter, ProposesWhatFollowedTheSameTokens) {
  const auto drafter = MakeLookupDrafter();
  ASSERT_TRUE(drafter->Begin(Tokens{1, 2, 3, 4, 5, 6, 7, 1, 2}).ok());
  EXPECT_EQ(Proposed(*drafter, 4), Tokens{}) << "two tokens are too few";
  ASSERT_TRUE(drafter->Add(3).ok());
  EXPECT_EQ(Proposed(*drafter, 2), (Tokens{4, 5}));
  EXPECT_EQ(Proposed(*drafter, 20), (Tokens{4, 5, 6, 7, 1, 2, 3}));
  ASSERT_TRUE(drafter->Add(9).ok());
  EXPECT_EQ(Proposed(*drafter, 4), Tokens{});
}

TEST(LookupDrafter, TheLongestMatchWins) {
  const auto drafter = MakeLookupDrafter();
  ASSERT_TRUE(
      drafter->Begin(Tokens{1, 2, 3, 4, 5, 6, 70, 8, 4, 5, 6, 71, 8, 1, 2, 3, 4, 5, 6}).ok());
  EXPECT_EQ(Proposed(*drafter, 1), Tokens{70});
}

TEST(LookupDrafter, TheLastPlaceWins) {
  const auto drafter = MakeLookupDrafter();
  ASSERT_TRUE(drafter->Begin(Tokens{4, 5, 6, 70, 8, 4, 5, 6, 71, 4, 5, 6}).ok());
  EXPECT_EQ(Proposed(*drafter, 1), Tokens{71});
}

TEST(LookupDrafter, RemembersEarlierTexts) {
  const auto drafter = MakeLookupDrafter();
  ASSERT_TRUE(drafter->Begin(Tokens{1, 2, 3, 4, 5}).ok());
  ASSERT_TRUE(drafter->Begin(Tokens{9, 1, 2, 3}).ok());
  EXPECT_EQ(Proposed(*drafter, 2), (Tokens{4, 5}));
  // A text that continues is not read twice, and no match crosses the border of two texts.
  ASSERT_TRUE(drafter->Begin(Tokens{9, 1, 2, 3, 5, 9, 1}).ok());
  EXPECT_EQ(Proposed(*drafter, 2), Tokens{});
  ASSERT_TRUE(drafter->Begin(Tokens{4, 5, 9}).ok());
  EXPECT_EQ(Proposed(*drafter, 1), Tokens{});
}

TEST(LookupDrafter, ForgetsWhenTheTextsAreMany) {
  const auto drafter = MakeLookupDrafter();
  Tokens text(700000);
  std::iota(text.begin(), text.end(), 0);
  ASSERT_TRUE(drafter->Begin(text).ok());
  std::iota(text.begin(), text.end(), 1000000);
  ASSERT_TRUE(drafter->Begin(text).ok());
  ASSERT_TRUE(drafter->Begin(Tokens{5, 6, 7}).ok());
  EXPECT_EQ(Proposed(*drafter, 1), Tokens{});
}

}  // namespace
}  // namespace kvcache::lookup_drafter_test
