#include "tokenizer/unicode/unicode_compose.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace kvcache::unicode_compose_test {
namespace {

std::string Composed(std::string_view text) {
  std::string storage;
  return std::string(ComposeText(text, &storage));
}

TEST(UnicodeComposeTest, ComposesTexts) {
  const struct {
    const char* text;
    const char* composed;
  } rows[] = {
      {"", ""},
      {"plain, é and 中文", "plain, é and 中文"},
      {"e\u0301", "\u00E9"},
      {"\u0301e", "\u0301e"},
      {"a\u0302\u0301", "\u1EA5"},  // three parts
      {"a\u0323\u0302", "\u1EAD"},
      {"a\u0302\u0323", "\u1EAD"},         // marks in another order
      {"q\u0307\u0323", "q\u0323\u0307"},  // sorted, not composed
      {"a\u0315\u0300", "\u00E0\u0315"},   // a mark of a higher class does not block
      {"a\u0305\u0301", "a\u0305\u0301"},  // a mark of the same class blocks
      {"\u212B", "\u00C5"},                // another character alone
      {"\u0958", "\u0915\u093C"},          // never composed
      {"\u1100\u1161\u11A8", "\uAC01"},    // Hangul
      {"\uAC00\u11A8", "\uAC01"},
      {"\u1100\u1161\u1161", "\uAC00\u1161"},
      {"\uFA10", "\u585A"},
      {"\U00011099\U000110BA", "\U0001109A"},
      {"\u0D46\u0D3E", "\u0D4A"},  // a vowel sign of class 0
  };
  for (const auto& row : rows) EXPECT_EQ(Composed(row.text), row.composed) << row.text;
}

TEST(UnicodeComposeTest, TextsThatAreComposedAreNotCopied) {
  std::string storage;
  for (const std::string_view text : {"plain", "é", "中文", "\uAC01", "हिन्दी"}) {
    const bool same = ComposeText(text, &storage).data() == text.data();
    EXPECT_EQ(same, text != "हिन्दी") << text;
    EXPECT_EQ(Composed(text), text);
  }
}

// Composition of a composed text changes nothing, for every character with parts.
TEST(UnicodeComposeTest, EveryCharacterIsComposedAgain) {
  for (const Decomposition& each : Decompositions()) {
    std::string parts;
    std::string whole;
    for (const std::uint32_t part : each.parts) {
      if (part != 0) AppendUtf8(part, parts);
    }
    AppendUtf8(each.code_point, whole);
    ASSERT_EQ(Composed(parts), Composed(whole)) << std::hex << each.code_point;
    ASSERT_EQ(Composed(Composed(parts)), Composed(parts)) << std::hex << each.code_point;
  }
}

}  // namespace
}  // namespace kvcache::unicode_compose_test
