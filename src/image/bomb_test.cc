// Small files that ask for much: refused by their headers, or decoded within bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "image/decode.h"
#include "image/pictures_testing.h"

namespace kvcache::image::bomb_test {
namespace {

using testing::Big;
using testing::BytesOf;
using testing::Flat;
using ::testing::HasSubstr;
using testing::JpegOf;
using testing::Little;
using testing::Pattern;
using testing::PngChecksum;
using testing::PngOf;
using testing::WebpOf;

Status Decode(const std::string& file) {
  return DecodePicture(BytesOf(file), "bomb").status();
}

void ExpectRefusedByItsSize(const std::string& file) {
  const Status status = Decode(file);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("at most"));
}

std::string Chunk(const std::string& name, const std::string& data) {
  return Big(data.size(), 4) + name + data + Big(PngChecksum(name + data), 4);
}

std::string PngHeader(std::uint64_t width, std::uint64_t height) {
  return "\x89PNG\r\n\x1a\n" +
         Chunk("IHDR", Big(width, 4) + Big(height, 4) + std::string("\x08\x02\0\0\0", 5));
}

// The compressed pixels of a file of libpng.
std::string PixelsOf(const std::string& png) {
  std::string data;
  for (std::size_t at = 8; at + 12 <= png.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i)
      length = length << 8 | static_cast<std::uint8_t>(png[at + i]);
    if (png.substr(at + 4, 4) == "IDAT") data += png.substr(at + 8, length);
    at += 12 + length;
  }
  return data;
}

TEST(BombTest, PngOfAHugeSize) {
  const std::string pixels = Chunk("IDAT", PixelsOf(PngOf(Pattern(4, 4)))) + Chunk("IEND", "");
  ExpectRefusedByItsSize(PngHeader(65535, 65535) + pixels);
  ExpectRefusedByItsSize(PngHeader(0x7FFFFFFF, 1) + pixels);
  ExpectRefusedByItsSize(PngHeader(0x7FFFFFFF, 0x7FFFFFFF) + pixels);
  EXPECT_EQ(Decode(PngHeader(0xFFFFFFFF, 0xFFFFFFFF) + pixels).code(), StatusCode::kCorrupt);
  EXPECT_EQ(Decode(PngHeader(0, 4) + pixels).code(), StatusCode::kCorrupt);
}

TEST(BombTest, PngWithMoreDataThanPixels) {
  const std::string much = PixelsOf(PngOf(Flat(3000, 3000, 0, 0, 0)));  // 27 MB
  ASSERT_LT(much.size(), 100000u);
  const std::string begin = PngHeader(1, 1), end = Chunk("IEND", "");
  EXPECT_TRUE(Decode(begin + Chunk("IDAT", much) + end).ok());
  const std::string pixel = Chunk("IDAT", PixelsOf(PngOf(Flat(1, 1, 0, 0, 0))));
  // Texts and profiles are skipped without being inflated.
  EXPECT_TRUE(Decode(begin + Chunk("zTXt", std::string("a\0\0", 3) + much) + pixel + end).ok());
  EXPECT_TRUE(Decode(begin + Chunk("iCCP", std::string("a\0\0", 3) + much) + pixel + end).ok());
  EXPECT_TRUE(
      Decode(begin + pixel + Chunk("iTXt", std::string("a\0\1\0\0\0", 6) + much) + end).ok());
  std::string many;
  for (int i = 0; i < 20000; ++i) many += Chunk("tEXt", std::string("a\0b", 3));
  EXPECT_TRUE(Decode(begin + many + pixel + many + end).ok());
}

TEST(BombTest, GifOfAHugeSize) {
  const auto gif = [](int screen, int x, int side) {
    return "GIF89a" + Little(screen, 2) + Little(screen, 2) + std::string(3, '\0') + "," +
           Little(x, 2) + Little(x, 2) + Little(side, 2) + Little(side, 2) +
           std::string("\0\2\2\x44\1\0;", 7);
  };
  EXPECT_TRUE(Decode(gif(1, 0, 1)).ok()) << Decode(gif(1, 0, 1)).message();
  ExpectRefusedByItsSize(gif(65535, 0, 1));
  ExpectRefusedByItsSize(gif(1, 0, 65535));
  ExpectRefusedByItsSize(gif(1, 65535, 1));
}

TEST(BombTest, WebpOfAHugeSize) {
  std::string lossless = WebpOf(Pattern(4, 4));
  lossless.replace(21, 4, "\xff\xff\xff\x0f");  // 16,384 x 16,384
  ExpectRefusedByItsSize(lossless);
  const std::string canvas =
      "VP8X" + Little(10, 4) + Little(2, 4) + Little(16383, 3) + Little(16383, 3);
  const std::string animation = "ANIM" + Little(6, 4) + Little(0, 6);
  const std::string pixels = WebpOf(Pattern(4, 4)).substr(12);
  const std::string frame = "ANMF" + Little(16 + pixels.size(), 4) + Little(0, 6) + Little(3, 3) +
                            Little(3, 3) + Little(0, 4) + pixels;
  const std::string body = "WEBP" + canvas + animation + frame;
  ExpectRefusedByItsSize("RIFF" + Little(body.size(), 4) + body);
}

TEST(BombTest, JpegOfAHugeSize) {
  const std::string file = JpegOf(Pattern(16, 16));
  const std::size_t header = file.find("\xff\xc0");
  ASSERT_NE(header, std::string::npos);
  for (const int side : {65535, 65500, 20000}) {
    std::string huge = file;
    huge.replace(header + 5, 4, Big(side, 2) + Big(side, 2));
    const Status status = Decode(huge);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  }
}

TEST(BombTest, JpegOfManyScans) {
  const std::string file = JpegOf(Pattern(16, 16), testing::kProgressiveScans);
  const std::size_t last = file.rfind("\xff\xda");
  ASSERT_NE(last, std::string::npos);
  const std::string scan = file.substr(last, file.size() - 2 - last);
  std::string bomb = file.substr(0, last);
  for (int i = 0; i < 5000; ++i) bomb += scan;
  const Status status = Decode(bomb + "\xff\xd9");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "bomb: JPEG: it has more than 100 scans");
}

}  // namespace
}  // namespace kvcache::image::bomb_test
