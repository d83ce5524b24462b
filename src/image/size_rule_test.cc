// tests/image compares random sizes with the rules in Python's arithmetic.
#include "image/size_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcache::image::size_rule_test {
namespace {

using ::testing::HasSubstr;

PictureSize Size(PictureSize picture, const SizeRule& rule) {
  const auto size = SizeFor(picture, rule);
  EXPECT_TRUE(size.ok()) << size.status().message();
  return size.ok() ? *size : PictureSize{};
}

TEST(SizeRuleTest, GivesOneSizeToAll) {
  EXPECT_EQ(Size({3, 2000}, FixedSize{{896, 896}}), (PictureSize{896, 896}));
  EXPECT_FALSE(SizeFor({3, 3}, FixedSize{}).ok());
}

TEST(SizeRuleTest, GivesTheLargestSizeWithinTheTokens) {
  EXPECT_EQ(Size({448, 448}, LargestSize{}), (PictureSize{768, 768}));
  EXPECT_EQ(Size({4000, 3000}, LargestSize{}), (PictureSize{912, 672}));
  EXPECT_EQ(Size({10, 5}, LargestSize{48, 70}), (PictureSize{528, 240}));
  // A side that would be nothing becomes one unit.
  EXPECT_EQ(Size({1000, 2}, LargestSize{}), (PictureSize{13440, 48}));
  EXPECT_EQ(Size({2, 500}, LargestSize{48, 70}), (PictureSize{48, 3360}));
}

TEST(SizeRuleTest, GivesTheNearestSizeWithinAnArea) {
  EXPECT_EQ(Size({1000, 700}, SizeWithinArea{}), (PictureSize{1008, 700}));
  EXPECT_EQ(Size({126, 70}, SizeWithinArea{}),
            (PictureSize{112, 56}));  // 4.5 and 2.5 go to the even numbers
  EXPECT_EQ(Size({20, 20}, SizeWithinArea{}), (PictureSize{56, 56}));
  EXPECT_EQ(Size({1000, 10}, SizeWithinArea{}), (PictureSize{560, 28}));
  EXPECT_EQ(Size({8000, 6000}, SizeWithinArea{}), (PictureSize{4116, 3080}));
  EXPECT_EQ(Size({4000, 30}, SizeWithinArea{28, 100, 10000}), (PictureSize{1148, 28}));
  EXPECT_THAT(SizeFor({2010, 10}, SizeWithinArea{}).status().message(),
              HasSubstr("2010 x 10 pixels is too long and narrow"));
}

TEST(SizeRuleTest, ShrinksToAnEdge) {
  EXPECT_EQ(Size({100, 50}, SizeWithinEdge{}), (PictureSize{112, 64}));
  EXPECT_EQ(Size({1024, 1023}, SizeWithinEdge{}), (PictureSize{1024, 1024}));
  EXPECT_EQ(Size({4000, 3000}, SizeWithinEdge{}), (PictureSize{1024, 768}));
  EXPECT_EQ(Size({3000, 2001}, SizeWithinEdge{28, 1540}), (PictureSize{1540, 1036}));
  EXPECT_FALSE(SizeFor({5000, 2}, SizeWithinEdge{}).ok());
}

TEST(SizeRuleTest, RefusesRulesWithoutSizes) {
  EXPECT_THAT(SizeFor({9, 9}, LargestSize{0, 280}).status().message(), HasSubstr("multiples of 0"));
  EXPECT_FALSE(SizeFor({9, 9}, LargestSize{48, 0}).ok());
  EXPECT_FALSE(SizeFor({9, 9}, SizeWithinArea{28, 3000, 2000}).ok());
  EXPECT_FALSE(SizeFor({9, 9}, SizeWithinEdge{16, 0}).ok());
}

}  // namespace
}  // namespace kvcache::image::size_rule_test
