#include "image/exif.h"

#include <gtest/gtest.h>

#include <string>

#include "image/pictures_testing.h"

namespace kvcache::image::exif_test {
namespace {

using testing::Big;
using testing::BytesOf;
using testing::ExifOf;
using testing::Little;

int OrientationIn(const std::string& tiff) {
  return static_cast<int>(OrientationOf(BytesOf(tiff)));
}

TEST(ExifTest, ReadsTheOrientation) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    EXPECT_EQ(OrientationIn(ExifOf(orientation)), orientation);
    EXPECT_EQ(OrientationIn(ExifOf(orientation, 4)), orientation);
  }
  const std::string big = "MM" + Big(42, 2) + Big(8, 4) + Big(1, 2) + Big(274, 2) + Big(3, 2) +
                          Big(1, 4) + Big(6, 2) + Big(0, 2);
  EXPECT_EQ(OrientationIn(big), 6);
}

TEST(ExifTest, TakesWhatIsDamagedAsUpright) {
  EXPECT_EQ(OrientationIn(""), 1);
  EXPECT_EQ(OrientationIn(ExifOf(0)), 1);
  EXPECT_EQ(OrientationIn(ExifOf(9)), 1);
  EXPECT_EQ(OrientationIn(ExifOf(6, 2)), 1);
  const std::string whole = ExifOf(6);
  for (std::size_t size = 0; size < 22; ++size)
    EXPECT_EQ(OrientationIn(whole.substr(0, size)), 1) << size;
  std::string far = whole;
  far.replace(4, 4, "\xff\xff\xff\xff");  // the directory lies beyond the end
  EXPECT_EQ(OrientationIn(far), 1);
  std::string many = whole;
  many.replace(8, 2, "\xff\xff");  // more entries than there are
  EXPECT_EQ(OrientationIn(many), 6);
  std::string two = whole;
  two.replace(14, 4, Little(2, 4));  // two values
  EXPECT_EQ(OrientationIn(two), 1);
}

std::string Jpeg(const std::string& segments) {
  return "\xff\xd8" + segments + "\xff\xda";
}
std::string Segment(char mark, const std::string& data) {
  return std::string("\xff") + mark + Big(data.size() + 2, 2) + data;
}

TEST(ExifTest, FindsTheBlockInJpeg) {
  const std::string exif = std::string("Exif\0\0", 6) + ExifOf(6);
  const auto found = [](const std::string& file) { return ExifOfJpeg(BytesOf(file)).size(); };
  EXPECT_EQ(found(Jpeg(Segment('\xe1', exif))), ExifOf(6).size());
  EXPECT_EQ(found(Jpeg(Segment('\xe0', "JFIF") + "\xff" + Segment('\xe1', "http:") +
                       Segment('\xe1', exif))),
            ExifOf(6).size());
  EXPECT_EQ(found(Jpeg("")), 0u);
  EXPECT_EQ(found("\xff\xd8"), 0u);
  EXPECT_EQ(found("\xff\xd8\xff\xda" + Segment('\xe1', exif)), 0u);  // behind the pixels
  EXPECT_EQ(found("\xff\xd8" + Segment('\xe1', exif).substr(0, 20)), 0u);
  EXPECT_EQ(found(std::string("\xff\xd8\xff\xe0\x00\x01", 6) + Segment('\xe1', exif)),
            0u);  // a length of one
}

TEST(ExifTest, FindsTheBlockInPng) {
  const auto chunk = [](const std::string& name, const std::string& data) {
    return Big(data.size(), 4) + name + data + Big(0, 4);
  };
  const auto found = [](const std::string& chunks) {
    return ExifOfPng(BytesOf("\x89PNG\r\n\x1a\n" + chunks)).size();
  };
  EXPECT_EQ(found(chunk("IHDR", "1234567890123") + chunk("IDAT", "") + chunk("eXIf", ExifOf(3))),
            ExifOf(3).size());
  EXPECT_EQ(found(chunk("eXIf", std::string("Exif\0\0", 6) + ExifOf(3))), ExifOf(3).size());
  EXPECT_EQ(found(chunk("IDAT", "")), 0u);
  EXPECT_EQ(found(Big(0xFFFFFFFF, 4) + "IDAT" + chunk("eXIf", ExifOf(3))), 0u);
  EXPECT_EQ(found(chunk("eXIf", ExifOf(3)).substr(0, 30)), 0u);
}

TEST(ExifTest, FindsTheBlockInWebp) {
  const auto chunk = [](const std::string& name, const std::string& data) {
    return name + Little(data.size(), 4) + data + std::string(data.size() % 2, '\0');
  };
  const auto found = [](const std::string& chunks) {
    return ExifOfWebp(BytesOf("RIFF....WEBP" + chunks)).size();
  };
  EXPECT_EQ(found(chunk("VP8X", "1234567890") + chunk("VP8 ", "odd") + chunk("EXIF", ExifOf(3))),
            ExifOf(3).size());
  EXPECT_EQ(found(chunk("VP8X", "1234567890")), 0u);
  EXPECT_EQ(found("VP8 " + Little(0xFFFFFFFF, 4) + chunk("EXIF", ExifOf(3))), 0u);
  EXPECT_EQ(found("VP8 " + Little(3, 4) + "odd"), 0u);  // the padding is cut off
}

}  // namespace
}  // namespace kvcache::image::exif_test
