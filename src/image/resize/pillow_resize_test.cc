// tests/image compares with Pillow itself.
#include "image/resize/pillow_resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "image/pictures_testing.h"
#include "image/resize/filter_taps.h"

namespace kvcache::image::pillow_resize_test {
namespace {

using testing::Flat;
using ::testing::HasSubstr;
using testing::Pattern;

constexpr ResizeFilter kFilters[] = {ResizeFilter::kBilinear, ResizeFilter::kBicubic,
                                     ResizeFilter::kLanczos};

std::vector<int> GreyRow(const std::vector<int>& greys, int width, ResizeFilter filter) {
  Picture picture{static_cast<int>(greys.size()), 1, {}};
  for (const int grey : greys)
    picture.rgb.insert(picture.rgb.end(), 3, static_cast<std::uint8_t>(grey));
  const auto resized = PillowResize(picture, {width, 1}, filter);
  std::vector<int> row;
  for (std::size_t i = 0; i < resized->rgb.size(); i += 3) row.push_back(resized->rgb[i]);
  return row;
}

TEST(PillowResizeTest, MixesPixels) {
  // As Pillow 9.4 gives them.
  EXPECT_EQ(GreyRow({0, 100, 200, 50}, 2, ResizeFilter::kBilinear), (std::vector{71, 121}));
  EXPECT_EQ(GreyRow({0, 100, 200, 50}, 8, ResizeFilter::kBilinear),
            (std::vector{0, 25, 75, 125, 175, 163, 88, 50}));
  EXPECT_EQ(GreyRow({0, 255, 0}, 6, ResizeFilter::kBicubic), (std::vector{0, 54, 216, 216, 54, 0}));
  EXPECT_EQ(GreyRow({0, 255, 0}, 6, ResizeFilter::kLanczos), (std::vector{0, 63, 221, 221, 63, 0}));
}

TEST(PillowResizeTest, KeepsWhatNeedsNoChange) {
  const Picture picture = Pattern(17, 9);
  for (const ResizeFilter filter : kFilters) {
    EXPECT_EQ(PillowResize(picture, {17, 9}, filter)->rgb, picture.rgb);
    const Picture flat = Flat(17, 9, 3, 128, 255);
    for (const PictureSize size : {PictureSize{1, 1}, {5, 40}, {60, 2}}) {
      EXPECT_EQ(PillowResize(flat, size, filter)->rgb,
                Flat(size.width, size.height, 3, 128, 255).rgb);
    }
  }
}

TEST(PillowResizeTest, ResizesRowsFirst) {
  const Picture picture = Pattern(12, 10);
  for (const ResizeFilter filter : kFilters) {
    const auto rows = PillowResize(picture, {5, 10}, filter);
    EXPECT_EQ(PillowResize(picture, {5, 7}, filter)->rgb, PillowResize(*rows, {5, 7}, filter)->rgb);
  }
}

TEST(PillowResizeTest, RefusesImpossibleSizes) {
  const Picture picture = Pattern(2, 2);
  for (const PictureSize size : {PictureSize{0, 1}, {1, 0}, {-1, 1}, {65536, 1}, {60000, 60000}}) {
    const auto resized = PillowResize(picture, size, ResizeFilter::kBicubic);
    EXPECT_EQ(resized.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(resized.status().message(), HasSubstr("cannot be resized"));
  }
  // The first pass would make a picture of 3.6 gigapixels.
  EXPECT_FALSE(PillowResize(Flat(1, 60000, 0, 0, 0), {60000, 1}, ResizeFilter::kBicubic).ok());
}

TEST(FilterTapsTest, FitTheSumsIntoThirtyTwoBits) {
  for (const ResizeFilter filter : kFilters) {
    for (int from = 1; from < 40; ++from) {
      for (int to = 1; to < 60; ++to) {
        const FilterTaps taps = MakeFilterTaps(from, to, filter);
        for (std::size_t pixel = 0; pixel < taps.windows.size(); ++pixel) {
          ASSERT_GE(taps.windows[pixel].first, 0);
          ASSERT_LE(taps.windows[pixel].first + taps.windows[pixel].count, from);
          std::int64_t sum = 0, magnitude = 0;
          for (const std::int32_t weight : taps.Weights(pixel)) {
            sum += weight;
            magnitude += std::abs(weight);
          }
          ASSERT_NEAR(static_cast<double>(sum), 1 << kWeightBits, taps.row);
          ASSERT_LT(magnitude * 255 + (1 << (kWeightBits - 1)), std::int64_t{1} << 31);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvcache::image::pillow_resize_test
