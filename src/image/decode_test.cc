#include "image/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"
#include "image/pictures_testing.h"

namespace kvcache::image::decode_test {
namespace {

using testing::Big;
using testing::BytesOf;
using testing::ExifOf;
using ::testing::HasSubstr;
using testing::JpegOf;
using testing::Little;
using testing::Pattern;
using testing::PngOf;
using testing::WebpOf;

Result<Picture> Decode(const std::string& file, const PictureLimits& limits = {}) {
  return DecodePicture(BytesOf(file), "picture 2", limits);
}

TEST(DecodePictureTest, GivesTheStoredPixels) {
  for (const auto& [width, height] : {std::pair{1, 1}, {7, 5}, {40, 31}}) {
    const Picture picture = Pattern(width, height);
    for (const std::string& file : {PngOf(picture), WebpOf(picture)}) {
      const auto decoded = Decode(file);
      ASSERT_TRUE(decoded.ok()) << decoded.status().message();
      EXPECT_EQ(decoded->width, width);
      EXPECT_EQ(decoded->height, height);
      EXPECT_EQ(decoded->rgb, picture.rgb);
    }
  }
}

TEST(DecodePictureTest, NamesThePictureTheFormatAndTheRule) {
  EXPECT_EQ(Decode("").status().message(), "picture 2: its file is empty");
  EXPECT_EQ(Decode("%PDF-1.7 and more").status().message(),
            "picture 2: its first bytes, '%PDF-1.7 and', are none of PNG, JPEG, WebP, GIF or BMP");
  EXPECT_EQ(Decode("%PDF-1.7").status().code(), StatusCode::kUnsupported);
  const std::string png = PngOf(Pattern(7, 5));
  EXPECT_EQ(Decode(png.substr(0, png.size() - 30)).status().message(),
            "picture 2: PNG: the file ends before the picture does");
  EXPECT_EQ(Decode(png.substr(0, 40)).status().code(), StatusCode::kCorrupt);
}

TEST(DecodePictureTest, KeepsToTheLimits) {
  const Picture picture = Pattern(40, 31);
  for (const std::string& file : {PngOf(picture), JpegOf(picture), WebpOf(picture)}) {
    EXPECT_TRUE(Decode(file, {.max_pixels = 40 * 31, .max_side = 40}).ok());
    const auto many = Decode(file, {.max_pixels = 40 * 31 - 1});
    EXPECT_EQ(many.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(many.status().message(),
                HasSubstr("its size is 40 x 31 pixels; a picture has at most 1239 pixels"));
    EXPECT_THAT(Decode(file, {.max_side = 39}).status().message(),
                HasSubstr("a side has at most 39 pixels"));
    const auto bytes = static_cast<std::int64_t>(file.size());
    EXPECT_TRUE(Decode(file, {.max_bytes = bytes}).ok());
    EXPECT_EQ(
        Decode(file, {.max_bytes = bytes - 1}).status().message(),
        StrCat("picture 2: its file has ", bytes, " bytes; at most ", bytes - 1, " are decoded"));
  }
}

TEST(DecodePictureTest, TurnsAsExifSays) {
  const Picture picture = Pattern(7, 5);
  const std::string exif = ExifOf(6);  // a quarter turn
  std::string png = PngOf(picture);
  png.insert(33, Big(exif.size(), 4) + "eXIf" + exif + Big(0, 4));  // its checksum is not looked at
  std::string webp = WebpOf(picture);
  const std::string extended = "VP8X" + Little(10, 4) + Little(8, 4) + Little(6, 3) + Little(4, 3);
  webp = webp.substr(0, 12) + extended + webp.substr(12) + "EXIF" + Little(exif.size(), 4) + exif;
  webp.replace(4, 4, Little(webp.size() - 8, 4));
  for (const std::string& file : {png, webp}) {
    const auto turned = Decode(file);
    ASSERT_TRUE(turned.ok()) << turned.status().message();
    ASSERT_EQ(turned->width, 5);
    ASSERT_EQ(turned->height, 7);
    for (int y = 0; y < 7; ++y) {
      for (int x = 0; x < 5; ++x) {
        for (int channel = 0; channel < 3; ++channel) {
          EXPECT_EQ(turned->Row(y)[x * 3 + channel], picture.Row(4 - x)[y * 3 + channel]);
        }
      }
    }
  }
}

TEST(DecodePictureTest, PutsGreyIntoAllChannels) {
  const std::string grey("\0\x40\x80\xff", 4);
  const auto png = Decode(PngOf(4, 1, grey.data(), PNG_FORMAT_GRAY));
  ASSERT_TRUE(png.ok()) << png.status().message();
  EXPECT_EQ(png->rgb,
            (std::vector<std::uint8_t>{0, 0, 0, 64, 64, 64, 128, 128, 128, 255, 255, 255}));
  const std::vector<std::uint8_t> rows(64, 77);
  const auto jpeg = Decode(JpegOf(8, 8, rows.data(), JCS_GRAYSCALE));
  ASSERT_TRUE(jpeg.ok()) << jpeg.status().message();
  EXPECT_EQ(jpeg->rgb, std::vector<std::uint8_t>(192, 77));
}

TEST(DecodePictureTest, DropsTransparency) {
  // Half and wholly transparent pixels keep their colours.
  const std::string pixels("\x10\x20\x30\x80\x40\x50\x60\x00", 8);
  const auto png = Decode(PngOf(2, 1, pixels.data(), PNG_FORMAT_RGBA));
  ASSERT_TRUE(png.ok()) << png.status().message();
  EXPECT_EQ(png->rgb, (std::vector<std::uint8_t>{16, 32, 48, 64, 80, 96}));
}

TEST(DecodePictureTest, TakesTheHighByteOfSixteenBits) {
  // libpng writes 16 bits as linear light, so that the rows here are patched into a file of the right size.
  const std::vector<std::uint16_t> grey = {0, 0x1234, 0xFF80, 0xFFFF};
  const std::string file = PngOf(4, 1, grey.data(), PNG_FORMAT_LINEAR_Y);
  const auto png = Decode(file);
  ASSERT_TRUE(png.ok()) << png.status().message();
  EXPECT_EQ(png->rgb, (std::vector<std::uint8_t>{0, 0, 0, 0x12, 0x12, 0x12, 0xFF, 0xFF, 0xFF, 0xFF,
                                                 0xFF, 0xFF}));
}

TEST(DecodePictureTest, TakesCmykAsInverted) {
  std::vector<std::uint8_t> rows;
  for (int i = 0; i < 64; ++i) rows.insert(rows.end(), {255, 128, 0, 128});
  const auto jpeg = Decode(JpegOf(8, 8, rows.data(), JCS_CMYK));
  ASSERT_TRUE(jpeg.ok()) << jpeg.status().message();
  // 128 - (255 - c) * 128 / 255
  EXPECT_EQ(std::vector<std::uint8_t>(jpeg->rgb.begin(), jpeg->rgb.begin() + 3),
            (std::vector<std::uint8_t>{128, 64, 0}));
}

TEST(DecodePictureTest, RefusesACutJpegFile) {
  for (const bool progressive : {false, true}) {
    const Picture picture = Pattern(40, 31);
    const std::string file =
        progressive ? JpegOf(picture, testing::kProgressiveScans) : JpegOf(picture);
    ASSERT_TRUE(Decode(file).ok());
    for (std::size_t size = 3; size + 2 < file.size(); size += 7) {
      const auto cut = Decode(file.substr(0, size));
      EXPECT_EQ(cut.status().code(), StatusCode::kCorrupt) << size;
    }
  }
}

}  // namespace
}  // namespace kvcache::image::decode_test
