#include "base/utf8.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace kvcache::utf8_test {
namespace {

TEST(Utf8Test, WritesAndReadsTheFirstAndLastCharactersOfEachLength) {
  int length = 1;
  std::uint32_t first = 0;
  for (const std::uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu, 0x10FFFFu}) {
    for (const std::uint32_t point : {first, last}) {
      std::string text;
      AppendUtf8(point, text);
      EXPECT_EQ(CharacterLength(text + "x"), length) << point;
      EXPECT_EQ(CodePointOf(text), point);
      for (std::size_t cut = 1; cut < text.size(); ++cut) {
        EXPECT_EQ(CharacterLength(std::string_view(text).substr(0, cut)), 0) << point;
      }
    }
    first = last + 1;
    ++length;
  }
}

TEST(Utf8Test, RefusesBytesThatBeginNoCharacter) {
  for (const char* text : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                           "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5", "\xFF", "\xC3x"}) {
    EXPECT_EQ(CharacterLength(text), -1) << text;
  }
}

TEST(Utf8Test, CutsTextsBetweenCharacters) {
  EXPECT_EQ(BeginningOf("a\xC3\xA4z", 4), "a\xC3\xA4z");
  EXPECT_EQ(BeginningOf("a\xC3\xA4z", 3), "a\xC3\xA4");
  EXPECT_EQ(BeginningOf("a\xC3\xA4z", 2), "a");
  EXPECT_EQ(BeginningOf("\xC3\xA4", 1), "");
}

}  // namespace
}  // namespace kvcache::utf8_test
