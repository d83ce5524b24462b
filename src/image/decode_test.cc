#include "image/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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
  // The file says that its numbers are linear light; like Pillow, the decoder takes them as they are.
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

// A file of indices of 8 bits, a palette of two colours: black and white.
std::string IndexedPng(const std::string& row) {
  const std::string data = '\0' + row;  // no filter
  std::uint32_t a = 1, b = 0;
  for (const char byte : data) {
    a += static_cast<std::uint8_t>(byte);
    b += a;
  }
  const std::string stored = "\x78\x01\x01" + Little(data.size(), 2) + Little(~data.size(), 2) +
                             data + Big(b, 2) + Big(a, 2);
  const auto chunk = [](const std::string& name, const std::string& bytes) {
    return Big(bytes.size(), 4) + name + bytes + Big(0, 4);
  };
  return testing::WithPngChecksums(
      "\x89PNG\r\n\x1a\n" +
      chunk("IHDR", Big(row.size(), 4) + Big(1, 4) + std::string("\x08\x03\0\0\0", 5)) +
      chunk("PLTE", std::string("\0\0\0\xff\xff\xff", 6)) + chunk("IDAT", stored) +
      chunk("IEND", ""));
}

TEST(DecodePictureTest, RefusesAColourThatThePaletteLacks) {
  const auto good = Decode(IndexedPng(std::string("\1\0", 2)));
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->rgb, (std::vector<std::uint8_t>{255, 255, 255, 0, 0, 0}));
  const auto bad = Decode(IndexedPng(std::string("\1\2", 2)));
  EXPECT_EQ(bad.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(bad.status().message(), "picture 2: PNG: a pixel has colour 2; its palette has 2");
}

TEST(DecodePictureTest, GivesTheFirstFrameOnABlackCanvas) {
  const std::string pixels = WebpOf(Pattern(2, 1)).substr(12);
  const auto frame = [&](int x, int y) {
    return "ANMF" + Little(16 + pixels.size(), 4) + Little(static_cast<std::uint64_t>(x), 3) +
           Little(static_cast<std::uint64_t>(y), 3) + Little(1, 3) + Little(0, 3) + Little(0, 4) +
           pixels;  // 2 x 1
  };
  const auto file = [](const std::string& frames) {
    const std::string body = "WEBPVP8X" + Little(10, 4) + Little(2, 4) + Little(3, 3) +
                             Little(2, 3) + "ANIM" + Little(6, 4) + Little(0xFFFFFFFF, 6) +
                             frames;  // 4 x 3 on white, which is not looked at
    return "RIFF" + Little(body.size(), 4) + body;
  };
  const auto picture = Decode(file(frame(1, 1) + frame(0, 0)));  // counts in twos
  ASSERT_TRUE(picture.ok()) << picture.status().message();
  Picture expected = testing::Flat(4, 3, 0, 0, 0);
  std::ranges::copy(Pattern(2, 1).rgb, expected.Row(2).subspan(6).begin());
  EXPECT_EQ(picture->rgb, expected.rgb);
  EXPECT_EQ(Decode(file(frame(2, 1))).status().code(), StatusCode::kCorrupt);  // beyond the canvas
  EXPECT_EQ(Decode(file("")).status().code(), StatusCode::kCorrupt);
}

TEST(DecodePictureTest, RefusesJpegOfTwoChannels) {
  const std::vector<std::uint8_t> rows(128, 50);
  std::string file = JpegOf(8, 8, rows.data(), JCS_UNKNOWN);
  const auto picture = Decode(file);
  EXPECT_EQ(picture.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(picture.status().message(),
            "picture 2: JPEG: it has 2 channels; 1, 3 or 4 are decoded");
}

TEST(DecodePictureTest, RefusesPixelsThatLibjpegWouldGuess) {
  const std::string file = JpegOf(Pattern(64, 64));
  const std::size_t pixels = file.rfind("\xff\xda") + 14;
  std::string damaged = file;
  damaged.replace(pixels + 200, 2, "\xff\xd3");  // a mark where none may be
  EXPECT_THAT(Decode(damaged).status().message(),
              HasSubstr("JPEG: Corrupt JPEG data: premature end of data segment"));
  // Bytes between segments are no damage of pixels.
  std::string between = file;
  between.insert(file.find("\xff\xdb"), "????");
  const auto picture = Decode(between);
  ASSERT_TRUE(picture.ok()) << picture.status().message();
  EXPECT_EQ(picture->rgb, Decode(file)->rgb);
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
