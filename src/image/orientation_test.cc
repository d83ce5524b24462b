#include "image/orientation.h"

#include <gtest/gtest.h>

#include "image/pictures_testing.h"

namespace kvcache::image::orientation_test {
namespace {

// The letters of two rows, each a pixel, as a picture is shown.
std::string Shown(const std::string& upper, const std::string& lower, Orientation orientation) {
  Picture picture{static_cast<int>(upper.size()), 2, {}};
  for (const char letter : upper + lower)
    picture.rgb.insert(picture.rgb.end(), 3, static_cast<std::uint8_t>(letter));
  const auto shown = Oriented(picture, orientation);
  std::string text;
  for (int y = 0; y < shown->height; ++y) {
    if (y > 0) text += '/';
    for (int x = 0; x < shown->width; ++x) {
      text += static_cast<char>(shown->Row(y)[x * 3]);
      EXPECT_EQ(shown->Row(y)[x * 3], shown->Row(y)[x * 3 + 2]);
    }
  }
  return text;
}

TEST(OrientationTest, TurnsAndMirrors) {
  EXPECT_EQ(Shown("abc", "def", Orientation::kUpright), "abc/def");
  EXPECT_EQ(Shown("abc", "def", Orientation::kMirrored), "cba/fed");
  EXPECT_EQ(Shown("abc", "def", Orientation::kHalfTurn), "fed/cba");
  EXPECT_EQ(Shown("abc", "def", Orientation::kFlipped), "def/abc");
  EXPECT_EQ(Shown("abc", "def", Orientation::kTransposed), "ad/be/cf");
  EXPECT_EQ(Shown("abc", "def", Orientation::kQuarterTurn), "da/eb/fc");
  EXPECT_EQ(Shown("abc", "def", Orientation::kTransversed), "fc/eb/da");
  EXPECT_EQ(Shown("abc", "def", Orientation::kThreeQuarterTurn), "cf/be/ad");
}

}  // namespace
}  // namespace kvcache::image::orientation_test
