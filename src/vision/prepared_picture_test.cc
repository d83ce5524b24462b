#include "vision/prepared_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "image/fit.h"
#include "image/pictures_testing.h"

namespace kvcache::vision {
namespace {

using image::testing::BytesOf;
using image::testing::Pattern;
using image::testing::PngOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

VisionSettings Fixed(int side) {
  VisionSettings settings;
  settings.patch_size = 8;
  settings.merge = 4;
  settings.size_rule = image::FixedSize{{side, side}};
  return settings;
}

TEST(PreparedPicture, IsStretchedToTheTowersSize) {
  const image::Picture picture = Pattern(50, 20);
  const auto prepared = Prepare(BytesOf(PngOf(picture)), "picture 1", Fixed(64));
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  const auto expected =
      image::Fit(picture, {64, 64}, image::Stretch{image::ResizeFilter::kBilinear});
  EXPECT_EQ(prepared->pixels.rgb, expected->rgb);
  EXPECT_EQ(prepared->layout.patches, (PictureGrid{8, 8}));
  EXPECT_EQ(prepared->layout.tokens, (PictureGrid{2, 2}));
  EXPECT_EQ(prepared->layout.token_count, 4);
}

TEST(PreparedPicture, ErrorsNameThePicture) {
  const auto damaged = Prepare(BytesOf("no picture"), "picture 7", Fixed(64));
  ASSERT_FALSE(damaged.ok());
  EXPECT_THAT(damaged.status().message(), StartsWith("picture 7"));
  const std::string file = PngOf(Pattern(50, 20));
  const auto large = Prepare(BytesOf(file), "picture 7", Fixed(64), {.max_pixels = 999});
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(large.status().message(), StartsWith("picture 7"));
}

TEST(PictureLayout, HasWholeTokens) {
  const auto layout = LayoutOf({10, 10}, Fixed(60));
  ASSERT_FALSE(layout.ok());
  EXPECT_THAT(layout.status().message(),
              HasSubstr("60 x 60 pixels; both sides must be multiples of 32"));
}

TEST(PictureLayout, HasALimit) {
  VisionSettings settings = Fixed(8192);
  settings.patch_size = 1;
  const auto layout = LayoutOf({10, 10}, settings);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(layout.status().message(), HasSubstr("67108864 patches; must be at most 262144"));
}

}  // namespace
}  // namespace kvcache::vision
