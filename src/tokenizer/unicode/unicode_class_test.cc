#include "tokenizer/unicode/unicode_class.h"

#include <gtest/gtest.h>

namespace kvcache::unicode_class_test {
namespace {

TEST(UnicodeClassTest, ClassifiesCodePoints) {
  const struct {
    std::uint32_t code_point;
    UnicodeClass expected;
  } rows[] = {
      {'a', kLetter | kLowerLetter},
      {'Z', kLetter | kUpperLetter},
      {0xE9, kLetter | kLowerLetter},
      {0x4E2D, kLetter},
      {0x2EBF0, kLetter},
      {'7', kNumber},
      {0xBD, kNumber},
      {0x2167, kNumber},
      {0x0301, kMark},
      {0x094D, kMark},
      {'!', kPunctuation},
      {0x3002, kPunctuation},
      {'+', kSymbol},
      {0x1F600, kSymbol},
      {0x31EF, kSymbol},
      {' ', kWhite},
      {'\n', kWhite},
      {0x85, kWhite},
      {0xA0, kWhite},
      {0x3000, kWhite},
      {0x2028, kWhite},
      {0, kOther},
      {0x200B, kOther},
      {0x200D, kOther},
      {0xE000, kOther},
      {0x10FFFF, kOther},
      {0x323B0, kLetter},
      {0xFFFD, kSymbol},
      {0x0378, kOther},
      {0xFEFF, kOther},
      {0x1C89, kLetter | kUpperLetter},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(UnicodeClasses().ClassOf(row.code_point), row.expected) << std::hex << row.code_point;
  }
}

TEST(UnicodeClassTest, TableAgreesWithRanges) {
  const auto ranges = UnicodeRanges();
  ASSERT_EQ(ranges[0].first, 0u);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::uint32_t end = i + 1 < ranges.size() ? ranges[i + 1].first : 0x110000;
    ASSERT_LT(ranges[i].first, end);
    for (std::uint32_t c = ranges[i].first; c < end; ++c) {
      ASSERT_EQ(UnicodeClasses().ClassOf(c), ranges[i].kind) << std::hex << c;
    }
  }
}

TEST(UnicodeClassTest, DecodesCharactersOfEachLength) {
  const struct {
    const char* text;
    std::uint32_t code_point;
    std::uint32_t bytes;
  } rows[] = {{"a", 'a', 1},
              {"\u00E9", 0xE9, 2},
              {"\u07FF", 0x7FF, 2},
              {"\u0800", 0x800, 3},
              {"\uFFFF", 0xFFFF, 3},
              {"\U00010000", 0x10000, 4},
              {"\U0010FFFF", 0x10FFFF, 4}};
  for (const auto& row : rows) {
    EXPECT_EQ(DecodeUtf8(row.text).code_point, row.code_point);
    EXPECT_EQ(DecodeUtf8(row.text).bytes, row.bytes);
  }
}

}  // namespace
}  // namespace kvcache::unicode_class_test
