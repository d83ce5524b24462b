#include "image/normalise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "image/pictures_testing.h"

namespace kvcache::image::normalise_test {
namespace {

using ::testing::HasSubstr;
using testing::Pattern;

TEST(NormaliseTest, RoundsEachStep) {
  const Picture picture = Pattern(16, 16);
  const Normalisation clip{{0.48145466F, 0.4578275F, 0.40821073F},
                           {0.26862954F, 0.26130258F, 0.27577711F}};
  const auto planes = Normalise(picture, clip);
  ASSERT_TRUE(planes.ok());
  ASSERT_EQ(planes->values.size(), 768u);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t i = 0; i < 256; ++i) {
      volatile float value = static_cast<float>(picture.rgb[i * 3 + channel]) / 255.0F;
      value = value - clip.mean[channel];
      value = value / clip.deviation[channel];
      EXPECT_EQ(planes->values[channel * 256 + i], value);
    }
  }
  const auto plain = Normalise({1, 1, {0, 51, 255}}, {});
  EXPECT_EQ(plain->values, (std::vector<float>{0.0F, 0.2F, 1.0F}));
}

TEST(NormaliseTest, DividesAsProcessorsMultiply) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto plain =
        Normalise({1, 1, std::vector<std::uint8_t>(3, static_cast<std::uint8_t>(byte))}, {});
    EXPECT_EQ(plain->values[0], static_cast<float>(byte * (1.0 / 255.0)));
  }
}

TEST(NormaliseTest, RefusesWhatGivesNoNumbers) {
  const Picture picture = Pattern(1, 1);
  EXPECT_THAT(Normalise(picture, {{0, 0, 0}, {1, 0, 1}}).status().message(),
              HasSubstr("channel 1 has mean 0 and deviation 0"));
  EXPECT_FALSE(Normalise(picture, {{0, 0, NAN}, {1, 1, 1}}).ok());
  EXPECT_FALSE(Normalise(picture, {{0, 0, 0}, {INFINITY, 1, 1}}).ok());
}

// Planes whose numbers say where they lie: channel, row, column.
Planes Numbered(int width, int height) {
  Planes planes{width, height, {}};
  for (int channel = 0; channel < 3; ++channel) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x)
        planes.values.push_back(static_cast<float>(channel * 10000 + y * 100 + x));
    }
  }
  return planes;
}

TEST(PatchesTest, FollowRowsOrBlocks) {
  const Planes planes = Numbered(8, 4);
  const auto first_values = [&](int block) {
    const auto patches = PatchesOf(planes, 2, block);
    EXPECT_EQ(patches->columns, 4);
    EXPECT_EQ(patches->rows, 2);
    EXPECT_EQ(patches->row_values, 12);
    std::vector<int> values;
    for (std::size_t i = 0; i < patches->values.size(); i += 12)
      values.push_back(static_cast<int>(patches->values[i]));
    return values;
  };
  EXPECT_EQ(first_values(1), (std::vector{0, 2, 4, 6, 200, 202, 204, 206}));
  EXPECT_EQ(first_values(2), (std::vector{0, 2, 200, 202, 4, 6, 204, 206}));
  const auto patches = PatchesOf(planes, 2);
  EXPECT_EQ(
      std::vector<float>(patches->values.begin() + 12, patches->values.begin() + 24),
      (std::vector<float>{2, 3, 102, 103, 10002, 10003, 10102, 10103, 20002, 20003, 20102, 20103}));
}

TEST(PatchesTest, RefusePicturesThatDoNotDivide) {
  EXPECT_TRUE(PatchesOf(Numbered(12, 6), 3, 2).ok());
  EXPECT_THAT(PatchesOf(Numbered(12, 6), 4, 1).status().message(),
              HasSubstr("12 x 6 pixels is not made of blocks of 1 x 1 patches of 4 x 4 pixels"));
  EXPECT_FALSE(PatchesOf(Numbered(12, 6), 3, 4).ok());
  EXPECT_FALSE(PatchesOf(Numbered(12, 6), 0, 1).ok());
  EXPECT_FALSE(PatchesOf(Numbered(12, 6), 3, 0).ok());
  EXPECT_FALSE(PatchesOf(Planes{}, 3, 1).ok());
}

}  // namespace
}  // namespace kvcache::image::normalise_test
