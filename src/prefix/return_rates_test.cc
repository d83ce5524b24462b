// Rates and worth by class and age, and the history that feeds them.
#include "prefix/return_rates.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "prefix/reuse_history.h"

namespace kvcache::prefix::return_rates_test {
namespace {

TEST(ReturnRates, BucketsCoverAllAges) {
  EXPECT_EQ(ReturnRates::BucketOf(0), 0);
  for (int b = 1; b < ReturnRates::kBuckets; ++b) {
    EXPECT_GT(ReturnRates::BucketBegin(b), ReturnRates::BucketBegin(b - 1));
    EXPECT_EQ(ReturnRates::BucketOf(ReturnRates::BucketBegin(b) * 1.01), b);
    EXPECT_EQ(ReturnRates::BucketOf(ReturnRates::BucketBegin(b) * 0.99), b - 1);
  }
  EXPECT_EQ(ReturnRates::BucketOf(1e18), ReturnRates::kBuckets - 1);
}

TEST(ReturnRates, FallWithAgeBeforeAnythingIsSeen) {
  const ReturnRates rates(2, 1);
  for (int b = 1; b < ReturnRates::kBuckets; ++b)
    EXPECT_LT(rates.Worth(0, b), rates.Worth(0, b - 1));
  EXPECT_EQ(rates.Worth(0, 3), rates.Worth(1, 3));
}

TEST(ReturnRates, FollowWhatAClassDoes) {
  ReturnRates rates(2, 1);
  for (int i = 0; i < 200; ++i) {
    rates.CountReturn(0, 1000, 1);
    rates.CountWait(0, 0, 1000, 1);
    rates.CountWait(1, 0, 1e7, 1);
  }
  rates.Refresh();
  for (int b = 0; b < 6; ++b) EXPECT_GT(rates.Worth(0, b), rates.Worth(1, b)) << b;
}

// A class that returns after a pause of about 400,000 tokens, and never before or after.
TEST(ReturnRates, WorthRisesTowardsTheReturnAndFallsBehindIt) {
  ReturnRates rates(1, 1);
  for (int i = 0; i < 2000; ++i) {
    rates.CountWait(0, 0, 400000, 1);
    rates.CountReturn(0, 400000, 1);
    rates.CountWait(0, 0, 5e6, 0.1);
  }
  rates.Refresh();
  const int pause = ReturnRates::BucketOf(400000);
  EXPECT_LT(rates.Worth(0, 0), rates.Worth(0, pause - 1));
  EXPECT_LT(rates.Worth(0, pause - 1), rates.Worth(0, pause));
  EXPECT_GT(rates.Worth(0, pause), 10 * rates.Worth(0, pause + 2));
}

// Classes of one family share what they have seen.
TEST(ReturnRates, FamiliesLearnTogether) {
  ReturnRates rates(4, 2);
  for (const int of_class : {0, 1}) rates.SetFamily(of_class, 0);
  for (const int of_class : {2, 3}) rates.SetFamily(of_class, 1);
  rates.CountReturn(0, 100, 50);
  rates.CountWait(0, 0, 100, 50);
  rates.CountWait(2, 0, 1e7, 50);
  rates.Refresh();
  EXPECT_GT(rates.Worth(1, 0), 2 * rates.Worth(3, 0)) << "neither was seen itself";
}

std::vector<PrefixKey> Range(PrefixKey first, std::size_t count) {
  std::vector<PrefixKey> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

TEST(ReuseHistory, KnowsWholeChunks) {
  ReuseHistory history(1 << 20);
  EXPECT_EQ(history.Find(Range(0, 300), 0), 0);
  history.Use(Range(0, 300), 0, {});
  EXPECT_EQ(history.Find(Range(0, 300), 0), 256);
  EXPECT_EQ(history.Find(Range(0, 100), 0), 64);
  EXPECT_EQ(history.Find(Range(0, 300), 1), 0) << "another salt";
  EXPECT_EQ(history.Find(Range(1, 300), 0), 0);
}

TEST(ReuseHistory, GroupsAreTokensWithAsManyUses) {
  ReuseHistory history(1 << 20);
  history.Use(Range(0, 256), 0, {});
  history.Pass(1000);
  auto keys = Range(0, 128);
  for (const PrefixKey key : Range(900, 192)) keys.push_back(key);
  EXPECT_EQ(history.Return(keys, 0), 128);
  const auto groups = history.Use(keys, 0, {.answer = 30, .new_tokens = 192});
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].begin, 0);
  EXPECT_EQ(groups[1].begin, 128);
  EXPECT_EQ(groups[0].of_class, UseClassOf({.uses = 2, .new_tokens = 192}));
  EXPECT_EQ(groups[1].of_class, UseClassOf({.uses = 1, .answer = 30}));
}

// Texts come twice if their answer is short, and once if it is long.
ReuseHistory AskTwice(std::int64_t held) {
  ReuseHistory history(1 << 24);
  history.SetHeld(held);
  for (PrefixKey i = 0; i < 200; ++i) {
    history.Use(Range(i << 20, 640), 0, {.answer = 4});
    history.Use(Range((i << 20) + (1 << 19), 640), 0, {.answer = 2000});
    history.Pass(640);
    EXPECT_EQ(history.Return(Range(i << 20, 640), 0), 640);
    history.Use(Range(i << 20, 640), 0, {.answer = 4});
    history.Pass(640);
  }
  return history;
}

TEST(ReuseHistory, LearnsFromReturns) {
  const ReuseHistory history = AskTwice(1000);
  const double asked = history.rates().Worth(UseClassOf({.uses = 1, .answer = 4}), 0);
  const double told = history.rates().Worth(UseClassOf({.uses = 1, .answer = 2000}), 0);
  EXPECT_GT(asked, 5 * told);
}

// All that returns is among the last 2,000 tokens: no order is better than that of age.
TEST(ReuseHistory, RatesAreThoseOfAgeWhileTheLeastRecentlyUsedReturnSeldom) {
  const ReuseHistory history = AskTwice(2000);
  for (int b = 1; b < ReturnRates::kBuckets; ++b) {
    for (int c = 0; c < kUseClasses; ++c) {
      EXPECT_EQ(history.rates().Worth(c, b), history.rates().Worth(0, b));
      EXPECT_LT(history.rates().Worth(c, b), history.rates().Worth(c, b - 1));
    }
  }
}

TEST(ReuseHistory, ForgetsTheOldest) {
  ReuseHistory history(64 * 64);
  for (PrefixKey i = 0; i < 400; ++i) {
    history.Use(Range(i << 20, 128), 0, {});
    history.Pass(128);
  }
  EXPECT_EQ(history.Find(Range(0, 128), 0), 0);
  EXPECT_EQ(history.Find(Range(PrefixKey{399} << 20, 128), 0), 128);
  EXPECT_LT(history.bytes(), 200000);
}

TEST(UseClass, TellsFamiliesAndScales) {
  EXPECT_EQ(UseClassOf({.uses = 1, .answer = 0}), 0);
  EXPECT_EQ(UseClassOf({.uses = 1, .answer = 8}), 1);
  EXPECT_EQ(UseClassOf({.uses = 1, .answer = 1 << 20}), kScales - 1);
  EXPECT_EQ(UseClassOf({.uses = 2, .new_tokens = 127}), kScales);
  EXPECT_EQ(UseClassOf({.uses = 2, .new_tokens = 128}), kScales + 1);
  EXPECT_EQ(UseClassOf({.uses = 99}), (kUseFamilies - 1) * kScales);
  for (int c = 0; c < kUseClasses; ++c) EXPECT_LT(FamilyOf(c), kUseFamilies);
}

}  // namespace
}  // namespace kvcache::prefix::return_rates_test
