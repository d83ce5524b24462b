#include "tokenizer/unicode/unicode_fold.h"

#include <gtest/gtest.h>

namespace kvcache::unicode_fold_test {
namespace {

TEST(UnicodeFold, FindsLowerCase) {
  const std::pair<std::uint32_t, std::uint32_t> rows[] = {
      {'A', 'a'},      {'z', 'z'},     {'@', '@'},          {0xC9, 0xE9},       {0xD7, 0xD7},
      {0x100, 0x101},  {0x101, 0x101}, {0x130, 0x130},      {0x1C4, 0x1C6},     {0x1C5, 0x1C6},
      {0x3A3, 0x3C3},  {0x410, 0x430}, {0x1E9E, 0xDF},      {0x10400, 0x10428}, {0x4E2D, 0x4E2D},
      {0x2126, 0x3C9}, {0x212A, 'k'},  {0x10FFFF, 0x10FFFF}};
  for (const auto& [upper, lower] : rows) EXPECT_EQ(LowerCaseOf(upper), lower) << upper;
}

TEST(UnicodeFold, KnowsMarksWithoutSpace) {
  for (const std::uint32_t mark : {0x300u, 0x36Fu, 0x5B0u, 0x93Cu, 0xE31u}) {
    EXPECT_TRUE(IsNonspacingMark(mark)) << mark;
  }
  for (const std::uint32_t other : {0x41u, 0x2FFu, 0x903u, 0x93Eu, 0x20DDu, 0x370u}) {
    EXPECT_FALSE(IsNonspacingMark(other)) << other;
  }
}

TEST(UnicodeFold, TakesCharactersApart) {
  EXPECT_EQ(PartsOf('a'), (CharacterParts{'a'}));
  EXPECT_EQ(PartsOf(0xE9), (CharacterParts{'e', 0x301}));
  EXPECT_EQ(PartsOf(0x1EA5), (CharacterParts{'a', 0x302, 0x301}));
  EXPECT_EQ(PartsOf(0x212B), (CharacterParts{'A', 0x30A}));
  EXPECT_EQ(PartsOf(0xAC00), (CharacterParts{0x1100, 0x1161}));
  EXPECT_EQ(PartsOf(0xD55C), (CharacterParts{0x1112, 0x1161, 0x11AB}));
  EXPECT_EQ(PartsOf(0x4E2D), (CharacterParts{0x4E2D}));
}

}  // namespace
}  // namespace kvcache::unicode_fold_test
