#include "tokenizer/bpe/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache::byte_alphabet_test {
namespace {

TEST(ByteAlphabetTest, SpellsAsVocabulariesDo) {
  EXPECT_EQ(SpellBytes(" the\n"), "ĠtheĊ");
  EXPECT_EQ(SpellBytes("é"), "Ã©");
  EXPECT_EQ(SpellBytes(std::string("\0\x7F\xA0\xAD\xFF", 5)), "ĀġłŃÿ");
}

TEST(ByteAlphabetTest, EveryByteHasItsOwnCharacterAndRoundTrips) {
  std::set<std::string> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    const std::string spelled = SpellBytes(one);
    EXPECT_TRUE(IsValidUtf8(spelled));
    EXPECT_TRUE(characters.insert(spelled).second) << byte;
    std::string back;
    EXPECT_TRUE(AppendBytesOf(spelled, &back));
    EXPECT_EQ(back, one);
  }
}

TEST(ByteAlphabetTest, KeepsOtherCharacters) {
  for (const std::string text : {"中", "\u0144", " ", "\xC4", "\xC4x", "\xAD", "\xC0\xA1", "▁"}) {
    std::string bytes;
    EXPECT_FALSE(AppendBytesOf("Ġ" + text, &bytes)) << text;
    EXPECT_EQ(bytes.substr(0, 1), " ");
    EXPECT_EQ(bytes.substr(1), text);
  }
}

}  // namespace
}  // namespace kvcache::byte_alphabet_test
