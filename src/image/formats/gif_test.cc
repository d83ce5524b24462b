#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "image/formats/formats.h"
#include "image/pictures_testing.h"

namespace kvcache::image::gif_test {
namespace {

using testing::BytesOf;
using ::testing::HasSubstr;
using testing::Little;

const std::string kColours("\x00\x00\x00\x0a\x14\x1e\x28\x32\x3c\xff\xff\xff", 12);  // four

std::string Screen(int width, int height, bool palette = true) {
  return "GIF89a" + Little(width, 2) + Little(height, 2) +
         (palette ? "\x81" : std::string(1, '\0')) + Little(0, 2) + (palette ? kColours : "");
}
std::string Frame(int x, int y, int width, int height, int flags = 0) {
  return "," + Little(x, 2) + Little(y, 2) + Little(width, 2) + Little(height, 2) +
         Little(flags, 1);
}

// Codes of two-bit pixels with a clear code before every second one, so that all codes have three bits.
std::string Pixels(const std::vector<int>& indices) {
  std::uint64_t bits = 0;
  int filled = 0;
  std::string data;
  const auto put = [&](std::uint64_t code) {
    bits |= code << filled;
    for (filled += 3; filled >= 8; filled -= 8, bits >>= 8) data += static_cast<char>(bits);
  };
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i % 2 == 0) put(4);
    put(static_cast<std::uint64_t>(indices[i]));
  }
  put(5);
  data += static_cast<char>(bits);
  return "\x02" + Little(data.size(), 1) + data + '\0';
}

Result<Picture> Decode(const std::string& file) {
  return DecodeGif(BytesOf(file), {});
}
std::string Message(const std::string& file) {
  return Decode(file).status().message();
}

// The red bytes of all pixels.
std::vector<int> Reds(const std::string& file) {
  const auto picture = Decode(file);
  EXPECT_TRUE(picture.ok()) << picture.status().message();
  std::vector<int> reds;
  if (picture.ok()) {
    for (std::size_t i = 0; i < picture->rgb.size(); i += 3) reds.push_back(picture->rgb[i]);
  }
  return reds;
}

TEST(GifTest, GivesTheColoursOfThePalette) {
  const auto picture = Decode(Screen(2, 2) + Frame(0, 0, 2, 2) + Pixels({0, 1, 2, 3}) + ";");
  ASSERT_TRUE(picture.ok()) << picture.status().message();
  EXPECT_EQ(picture->rgb, std::vector<std::uint8_t>(kColours.begin(), kColours.end()));
}

TEST(GifTest, PutsASmallFrameOnTheBackground) {
  const std::string control("\x21\xf9\x04\x01\x00\x00\x02\x00", 8);  // index 2 is transparent
  EXPECT_EQ(Reds(Screen(3, 2) + Frame(1, 1, 2, 1) + Pixels({1, 3})),
            (std::vector{0, 0, 0, 0, 10, 255}));
  EXPECT_EQ(Reds(Screen(3, 2) + control + Frame(1, 1, 2, 1) + Pixels({1, 2})),
            (std::vector{40, 40, 40, 40, 10, 40}));
}

TEST(GifTest, GrowsAScreenThatAFrameExceeds) {
  EXPECT_EQ(Reds(Screen(1, 1) + Frame(0, 0, 2, 2) + Pixels({0, 1, 2, 3})),
            (std::vector{0, 10, 40, 255}));
}

TEST(GifTest, PutsInterlacedRowsInOrder) {
  // Rows 0, 4 (every eighth), 2 and 6 (every fourth), and the odd ones.
  EXPECT_EQ(Reds(Screen(1, 7) + Frame(0, 0, 1, 7, 0x40) + Pixels({0, 1, 2, 3, 0, 0, 1})),
            (std::vector{0, 0, 40, 0, 10, 10, 255}));
}

TEST(GifTest, PrefersTheFramesPalette) {
  const std::string own("\x07\x07\x07\x08\x08\x08", 6);
  EXPECT_EQ(Reds(Screen(2, 1) + Frame(0, 0, 2, 1, 0x80) + own + Pixels({0, 1})),
            (std::vector{7, 8}));
  EXPECT_EQ(Reds(Screen(2, 1, false) + Frame(0, 0, 2, 1) + Pixels({0, 3})),
            (std::vector{0, 3}));  // greys
}

TEST(GifTest, RefusesDamagedFiles) {
  const std::string head = Screen(2, 2) + Frame(0, 0, 2, 2);
  EXPECT_THAT(Message(Screen(2, 2) + ";"), HasSubstr("no frame"));
  EXPECT_THAT(Message(Screen(2, 2) + "?"), HasSubstr("byte 25 is 63"));
  for (const std::size_t size : {6, 9, 13, 20, 25, 30, 34}) {
    EXPECT_THAT(Message(head.substr(0, size)), HasSubstr("ends before its first frame")) << size;
  }
  EXPECT_THAT(Message(head), HasSubstr("0 bits"));
  EXPECT_THAT(Message(head + "\x09"), HasSubstr("9 bits"));
  EXPECT_THAT(Message(head + Pixels({0, 1, 2})), HasSubstr("ends at pixel 3 of 4"));
  EXPECT_THAT(Message(head + Pixels({0, 1, 2}).substr(0, 3)), HasSubstr("ends at pixel"));
  EXPECT_THAT(Message(head + std::string("\x02\x01\xff\x00", 4)),
              HasSubstr("code 7 comes before it is defined"));
  EXPECT_THAT(Message(Screen(0, 0) + Frame(0, 0, 0, 0) + Pixels({})), HasSubstr("0 x 0"));
  const std::string two("\x07\x07\x07\x08\x08\x08", 6);
  EXPECT_THAT(Message(Screen(2, 1) + Frame(0, 0, 2, 1, 0x80) + two + Pixels({0, 2})),
              HasSubstr("colour 2; its palette has 2"));
}

}  // namespace
}  // namespace kvcache::image::gif_test
