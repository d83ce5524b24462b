#include "image/picture_hash.h"

#include <gtest/gtest.h>

#include "image/decode.h"
#include "image/pictures_testing.h"

namespace kvcache::image::picture_hash_test {
namespace {

TEST(PictureHashTest, NamesSizeAndPixels) {
  const Picture picture = testing::Pattern(6, 4);
  const auto hash = HashOf(picture);
  ASSERT_TRUE(hash.ok());
  Picture turned = picture;
  std::swap(turned.width, turned.height);
  EXPECT_NE(*HashOf(turned), *hash);
  Picture changed = picture;
  changed.rgb.back() ^= 1;
  EXPECT_NE(*HashOf(changed), *hash);
  // Of two files with the same pixels.
  const auto png = DecodePicture(testing::BytesOf(testing::PngOf(picture)), "png");
  const auto webp = DecodePicture(testing::BytesOf(testing::WebpOf(picture)), "webp");
  EXPECT_EQ(*HashOf(*png), *hash);
  EXPECT_EQ(*HashOf(*webp), *hash);
}

TEST(PictureHashTest, IsTheSameInAllVersions) {
  // sha256("kvcache picture 1", 01 00 00 00, 01 00 00 00, 01 02 03): stored keys depend on it.
  EXPECT_EQ(HexText(*HashOf({1, 1, {1, 2, 3}})),
            "2dfdaae4fb167a298945a442852177da3ee7950d64d29be6c60d2780da66bfd0");
}

}  // namespace
}  // namespace kvcache::image::picture_hash_test
