#include "base/strings.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvcache::strings_test {
namespace {

TEST(StrCat, JoinsTextAndNumbers) {
  EXPECT_EQ(StrCat(), "");
  EXPECT_EQ(StrCat("a", std::string("b"), 'c', std::string_view("d")), "abcd");
  EXPECT_EQ(StrCat(1, ' ', -2, ' ', std::uint64_t{18446744073709551615u}),
            "1 -2 18446744073709551615");
  EXPECT_EQ(StrCat(0.1, ' ', 2.5f, ' ', 1e300), "0.1 2.5 1e+300");
  EXPECT_EQ(StrCat(std::uint8_t{65}), "65");
}

TEST(Quoted, EscapesAndShortens) {
  EXPECT_EQ(Quoted("x.y"), "'x.y'");
  EXPECT_EQ(Quoted(std::string_view("a\0\n\xff", 4)), "'a\\x00\\x0a\\xff'");
  EXPECT_EQ(Quoted("abcdefgh", 4), "'ab...gh'");
  EXPECT_EQ(Quoted("abcd", 4), "'abcd'");
}

TEST(OneLine, EscapesControlCharactersAlone) {
  EXPECT_EQ(OneLine("a b\xc3\xa9\xe2\x98\x95"), "a b\xc3\xa9\xe2\x98\x95");
  EXPECT_EQ(OneLine(std::string_view("\0\n\x1b[2J\x7f", 7)), "\\x00\\x0a\\x1b[2J\\x7f");
  EXPECT_EQ(OneLine("\xc2\x9b"
                    "2J\xc2\xa0"),
            "\\xc2\\x9b"
            "2J\xc2\xa0");
  // Bytes that are not UTF-8: a lone 0x9b is CSI to an 8-bit terminal.
  EXPECT_EQ(OneLine("a\x9b"
                    "31m"),
            "a\\x9b"
            "31m");
  EXPECT_EQ(OneLine("\xff\xfe\xc3"), "\\xff\\xfe\\xc3");
  EXPECT_EQ(OneLine("\xc0\x80\xe0\x80\x80\xed\xa0\x80\xf4\x90\x80\x80"),
            "\\xc0\\x80\\xe0\\x80\\x80\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(OneLine("\xf0\x9f\x98\x80\xed\x9f\xbf"), "\xf0\x9f\x98\x80\xed\x9f\xbf");
  EXPECT_EQ(OneLine(""), "");
}

TEST(WithThousands, GroupsDigits) {
  const struct {
    std::int64_t number;
    std::string_view text;
  } kCases[] = {{0, "0"},       {999, "999"},           {1000, "1,000"},    {-1000, "-1,000"},
                {-999, "-999"}, {1234567, "1,234,567"}, {100000, "100,000"}};
  for (const auto& c : kCases) EXPECT_EQ(WithThousands(c.number), c.text);
}

TEST(HumanBytes, PicksTheUnit) {
  const struct {
    std::int64_t bytes;
    std::string_view text;
  } kCases[] = {{0, "0 bytes"},          {1023, "1023 bytes"},        {1024, "1.0 KiB"},
                {1500000000, "1.4 GiB"}, {(1 << 20) - 1, "1.0 MiB"},  {1 << 20, "1.0 MiB"},
                {1ll << 40, "1.0 TiB"},  {5000ll << 40, "5000.0 TiB"}};
  for (const auto& c : kCases) EXPECT_EQ(HumanBytes(c.bytes), c.text);
}

TEST(StringsTest, HexTextHasSixteenDigits) {
  EXPECT_EQ(HexText(48879), "000000000000beef");
  EXPECT_EQ(HexText(0xfedcba9876543210), "fedcba9876543210");
}

}  // namespace
}  // namespace kvcache::strings_test
