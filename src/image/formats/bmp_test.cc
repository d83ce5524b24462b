#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "image/formats/formats.h"
#include "image/pictures_testing.h"

namespace kvcache::image::bmp_test {
namespace {

using testing::BytesOf;
using ::testing::HasSubstr;
using testing::Little;

struct Form {
  std::int64_t width, height;
  int bits;
  int compression = 0;
  std::string behind_header{};  // masks, or a palette
  int colours = 0;
};

std::string Bmp(const Form& form, const std::string& pixels) {
  const std::string header = Little(40, 4) + Little(form.width, 4) + Little(form.height, 4) +
                             Little(1, 2) + Little(form.bits, 2) + Little(form.compression, 4) +
                             Little(0, 12) + Little(form.colours, 4) + Little(0, 4) +
                             form.behind_header;
  return "BM" + Little(0, 8) + Little(14 + header.size(), 4) + header + pixels;
}

Result<Picture> Decode(const std::string& file) {
  return DecodeBmp(BytesOf(file), {});
}
std::string Message(const std::string& file) {
  return Decode(file).status().message();
}

std::vector<int> Pixels(const std::string& file) {
  const auto picture = Decode(file);
  EXPECT_TRUE(picture.ok()) << picture.status().message();
  return picture.ok() ? std::vector<int>(picture->rgb.begin(), picture->rgb.end())
                      : std::vector<int>();
}

TEST(BmpTest, ReadsRowsFromBelowOrFromTheTop) {
  const std::string rows("\x03\x02\x01\xff\x06\x05\x04\xff", 8);
  EXPECT_EQ(Pixels(Bmp({1, 2, 32}, rows)), (std::vector{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(Pixels(Bmp({1, -2, 32}, rows)), (std::vector{1, 2, 3, 4, 5, 6}));
  // Rows of 24 bits are padded to four bytes; the last may lack that.
  const std::string padded("\x03\x02\x01\xff\x06\x05\x04", 7);
  EXPECT_EQ(Pixels(Bmp({1, 2, 24}, padded)), (std::vector{4, 5, 6, 1, 2, 3}));
  EXPECT_THAT(Message(Bmp({1, 2, 24}, padded.substr(0, 6))),
              HasSubstr("need 7 bytes from byte 54; the file has 60"));
}

TEST(BmpTest, ReadsSixteenBits) {
  EXPECT_EQ(Pixels(Bmp({2, 1, 16}, "\xff\x7f\x21\x04")), (std::vector{255, 255, 255, 8, 8, 8}));
  const std::string masks = Little(0xF800, 4) + Little(0x7E0, 4) + Little(0x1F, 4);
  EXPECT_EQ(Pixels(Bmp({2, 1, 16, 3, masks}, Little(0xF81F0020, 4))),
            (std::vector{0, 4, 0, 255, 0, 255}));
}

TEST(BmpTest, ReadsPalettes) {
  const std::string palette("\x03\x02\x01\x00\x06\x05\x04\x00", 8);
  EXPECT_EQ(Pixels(Bmp({2, 1, 1, 0, palette}, Little(0x40, 4))), (std::vector{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Pixels(Bmp({2, 1, 4, 0, palette, 2}, Little(0x10, 4))),
            (std::vector{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(Pixels(Bmp({2, 1, 8, 0, palette, 2}, Little(0x0100, 4))),
            (std::vector{1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(Message(Bmp({2, 1, 8, 0, palette, 2}, Little(0x0200, 4))),
              HasSubstr("colour 2; its palette has 2"));
  EXPECT_THAT(Message(Bmp({2, 1, 8, 0, palette, 257}, "1234")), HasSubstr("257 colours"));
  EXPECT_THAT(Message(Bmp({2, 1, 8, 0, palette}, "1234")), HasSubstr("ends within its header"));
}

TEST(BmpTest, RefusesSizesBeforeItReadsPixels) {
  EXPECT_THAT(Message(Bmp({0, 1, 24}, "1234")), HasSubstr("0 x 1"));
  EXPECT_THAT(Message(Bmp({-1, 1, 24}, "1234")), HasSubstr("-1 x 1"));
  EXPECT_THAT(Message(Bmp({1, -2147483648, 24}, "1234")),
              HasSubstr("1 x 2147483648 pixels; a side has"));
  EXPECT_THAT(Message(Bmp({2147483647, 2147483647, 32}, "1234")), HasSubstr("a side has at most"));
  EXPECT_THAT(Message(Bmp({60000, 60000, 1, 0, "12345678"}, "1234")),
              HasSubstr("a picture has at most"));
  EXPECT_THAT(Message(Bmp({8000, 8000, 32}, "1234")), HasSubstr("its pixels need 256000000 bytes"));
}

TEST(BmpTest, RefusesOtherForms) {
  EXPECT_THAT(Message(Bmp({1, 1, 8, 1}, "1234")), HasSubstr("compressed in form 1"));
  EXPECT_THAT(Message(Bmp({1, 1, 7}, "1234")), HasSubstr("7 bits"));
  EXPECT_THAT(Message(Bmp({1, 1, 32, 3, Little(5, 4) + "12345678"}, "1234")),
              HasSubstr("the bits 5"));
  EXPECT_THAT(Message(Bmp({1, 1, 32, 3, Little(0, 12)}, "1234")), HasSubstr("the bits 0"));
  const std::string whole = Bmp({1, 1, 24}, "1234");
  for (std::size_t size = 2; size < 54; size += 3)
    EXPECT_FALSE(Decode(whole.substr(0, size)).ok()) << size;
  std::string far = whole;
  far.replace(10, 4, "\xff\xff\xff\xff");  // pixels beyond the end
  EXPECT_THAT(Message(far), HasSubstr("from byte 4294967295"));
  std::string header = whole;
  header[14] = 13;
  EXPECT_THAT(Message(header), HasSubstr("13 bytes"));
}

}  // namespace
}  // namespace kvcache::image::bmp_test
