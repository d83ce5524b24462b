#include "image/fit.h"

#include <gtest/gtest.h>

#include "image/pictures_testing.h"
#include "image/resize/aligned_bilinear.h"

namespace kvcache::image::fit_test {
namespace {

using testing::Flat;
using testing::Pattern;

std::vector<std::uint8_t> PixelAt(const Picture& picture, int x, int y) {
  const auto row = picture.Row(y).subspan(static_cast<std::size_t>(x) * 3, 3);
  return {row.begin(), row.end()};
}

TEST(FitTest, StretchesOverTheWholeSize) {
  const Picture picture = Pattern(20, 10);
  const auto fitted = Fit(picture, {8, 8}, Stretch{ResizeFilter::kBicubic});
  EXPECT_EQ(fitted->rgb, PillowResize(picture, {8, 8}, ResizeFilter::kBicubic)->rgb);
}

TEST(FitTest, PutsBarsAroundAPictureOfAnotherAspect) {
  const Picture picture = Pattern(20, 10);
  const auto wide = Fit(picture, {8, 9}, PadWithBars{ResizeFilter::kBilinear, {122, 116, 104}});
  const Picture middle = *PillowResize(picture, {8, 4}, ResizeFilter::kBilinear);
  ASSERT_EQ(wide->width, 8);
  ASSERT_EQ(wide->height, 9);
  for (int y = 0; y < 9; ++y) {
    for (int x = 0; x < 8; ++x) {
      const bool bar = y < 2 || y >= 6;  // the upper bar is the smaller one
      EXPECT_EQ(PixelAt(*wide, x, y),
                bar ? (std::vector<std::uint8_t>{122, 116, 104}) : PixelAt(middle, x, y - 2));
    }
  }
  const auto high = Fit(Flat(10, 20, 1, 2, 3), {9, 8}, PadWithBarsAligned{});
  EXPECT_EQ(PixelAt(*high, 1, 0), (std::vector<std::uint8_t>{0, 0, 0}));
  EXPECT_EQ(PixelAt(*high, 2, 0), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(PixelAt(*high, 5, 7), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(PixelAt(*high, 6, 7), (std::vector<std::uint8_t>{0, 0, 0}));
}

TEST(FitTest, TheWaysGiveDifferentPixels) {
  const Picture picture = Pattern(64, 64);
  const auto stretched = Fit(picture, {16, 16}, Stretch{});
  EXPECT_EQ(Fit(picture, {16, 16}, PadWithBars{})->rgb, stretched->rgb);  // the aspect is the same
  EXPECT_NE(Fit(picture, {16, 16}, PadWithBarsAligned{})->rgb, stretched->rgb);
  EXPECT_NE(Fit(picture, {16, 8}, PadWithBars{})->rgb, Fit(picture, {16, 8}, Stretch{})->rgb);
}

TEST(FitTest, LeavesAPictureOfTheSizeAsItIs) {
  const Picture picture = Pattern(16, 9);
  for (const Fitting& way :
       {Fitting(Stretch{}), Fitting(PadWithBars{}), Fitting(PadWithBarsAligned{})}) {
    EXPECT_EQ(Fit(picture, {16, 9}, way)->rgb, picture.rgb);
    EXPECT_FALSE(Fit(picture, {16, 0}, way).ok());
  }
}

TEST(FitTest, RoundsTheSizeBetweenBarsUp) {
  EXPECT_EQ(SizeBetweenBars({100, 50}, {25, 25}), (PictureSize{25, 13}));
  EXPECT_EQ(SizeBetweenBars({100, 50}, {50, 50}), (PictureSize{50, 25}));
  EXPECT_EQ(SizeBetweenBars({100, 50}, {30, 30}),
            (PictureSize{30, 16}));  // 0.3 is a little more in f32
  EXPECT_EQ(SizeBetweenBars({1000, 1}, {30, 30}), (PictureSize{30, 1}));
  EXPECT_EQ(SizeBetweenBars({3, 7}, {896, 896}), (PictureSize{384, 896}));
}

TEST(AlignedBilinearTest, KeepsTheCornersAndRoundsDown) {
  Picture picture{2, 1, {0, 0, 0, 255, 100, 3}};
  const auto resized = AlignedBilinearResize(picture, {4, 2});
  const std::vector<std::uint8_t> row = {0, 0, 0, 85, 33, 1, 170, 66, 2, 255, 100, 3};
  EXPECT_EQ(std::vector<std::uint8_t>(resized->Row(0).begin(), resized->Row(0).end()), row);
  EXPECT_EQ(std::vector<std::uint8_t>(resized->Row(1).begin(), resized->Row(1).end()), row);
  EXPECT_EQ(AlignedBilinearResize(picture, {1, 1})->rgb, (std::vector<std::uint8_t>{0, 0, 0}));
}

}  // namespace
}  // namespace kvcache::image::fit_test
