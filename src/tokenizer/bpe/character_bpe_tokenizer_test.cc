#include "tokenizer/bpe/character_bpe_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace kvcache::character_bpe_tokenizer_test {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kFirst = 3 + 256;

// The tokens <pad> <eos> <bos>, the 256 bytes (byte b is 3 + b), then the given ones.
TokenizerData Data(const std::vector<std::string>& tokens, const std::vector<std::string>& merges) {
  TokenizerData data;
  data.model = "gemma4";
  data.tokens = {"<pad>", "<eos>", "<bos>"};
  data.types = {3, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    data.tokens.push_back({'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'});
    data.types.push_back(6);
  }
  for (const std::string& token : tokens) {
    data.tokens.push_back(token);
    data.types.push_back(1);
  }
  data.merges = merges;
  data.bos = 2;
  data.eos = 1;
  return data;
}

std::unique_ptr<Tokenizer> MakeOrDie(const TokenizerData& data) {
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text) {
  return *tokenizer.Encode(text, {.add_bos = AddToken::kNo});
}

TEST(CharacterBpeTest, MergesTheFirstListedFirstThenTheLeftmost) {
  const auto tokenizer =
      MakeOrDie(Data({"a", "b", "ab", "ba", "aba", "é", "▁", "▁a"}, {"b a", "a b", "ab a", "▁ a"}));
  const std::int32_t a = kFirst, b = a + 1, ab = a + 2, ba = a + 3, e = a + 5, space_a = a + 7;
  EXPECT_EQ(Encode(*tokenizer, "ab"), (Ids{ab}));
  EXPECT_EQ(Encode(*tokenizer, "aba"), (Ids{a, ba}));  // b a is listed first
  EXPECT_EQ(Encode(*tokenizer, "bab"), (Ids{ba, b}));
  EXPECT_EQ(Encode(*tokenizer, "é a"), (Ids{e, space_a}));
  EXPECT_EQ(Encode(*tokenizer, "a\nb"), (Ids{a, 3 + '\n', b}));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
  EXPECT_EQ(*tokenizer->Encode("a"), (Ids{2, a}));  // adds <bos> by default
}

TEST(CharacterBpeTest, OtherCharactersBecomeTheirBytes) {
  // 中 (E4 B8 AD) is known, 串 (E4 B8 B2) shares its first two bytes.
  const auto tokenizer = MakeOrDie(Data({"a", "中", "▁"}, {"a a"}));
  EXPECT_EQ(Encode(*tokenizer, "中串a"), (Ids{kFirst + 1, 3 + 0xE4, 3 + 0xB8, 3 + 0xB2, kFirst}));
  EXPECT_EQ(Encode(*tokenizer, "\xFF"), (Ids{3 + 0xEF, 3 + 0xBF, 3 + 0xBD}));  // U+FFFD
  EXPECT_EQ(*tokenizer->Decode(Encode(*tokenizer, "a 串\n")), "a 串\n");
}

TEST(CharacterBpeTest, EncodesRunsOfLineFeeds) {
  const auto tokenizer = MakeOrDie(Data({"\n", "\n\n", "\n\n\n", "a"}, {"\n \n", "a a"}));
  EXPECT_EQ(Encode(*tokenizer, "a\n\n\na"), (Ids{kFirst + 3, kFirst + 2, kFirst + 3}));
  EXPECT_EQ(Encode(*tokenizer, "\n\n\n\n"), (Ids{kFirst + 1, kFirst + 1}));  // merged
}

// The definition, on strings: joins the best listed pair until no listed pair is left.
Ids EncodeNaively(const TokenizerData& data, const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = static_cast<std::uint8_t>(text[i]) < 0x80 ? 1 : 2;
    parts.push_back(text.substr(i, length));
    i += length;
  }
  for (;;) {
    std::size_t best = data.merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = std::ranges::find(data.merges, parts[i] + " " + parts[i + 1]);
      const auto rank = static_cast<std::size_t>(found - data.merges.begin());
      if (rank < best) best = rank, at = i;
    }
    if (best == data.merges.size()) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) {
    const auto found = std::ranges::find(data.tokens, part);
    ids.push_back(static_cast<std::int32_t>(found - data.tokens.begin()));
  }
  return ids;
}

TEST(CharacterBpeTest, MatchesTheDefinitionOnRandomMerges) {
  std::mt19937 random(1);
  std::vector<std::string> texts = {"a", "b", "c", "é", "ß"};
  std::vector<std::string> merges;
  while (merges.size() < 60) {
    const std::string left = texts[random() % texts.size()];
    const std::string right = texts[random() % texts.size()];
    if (left.size() + right.size() > 12) continue;
    if (std::ranges::find(merges, left + " " + right) != merges.end()) continue;
    merges.push_back(left + " " + right);
    if (std::ranges::find(texts, left + right) == texts.end()) texts.push_back(left + right);
  }
  const TokenizerData data = Data(texts, merges);
  const auto tokenizer = MakeOrDie(data);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (std::size_t n = random() % 60; n > 0; --n) text += texts[random() % 5];
    ASSERT_EQ(Encode(*tokenizer, text), EncodeNaively(data, text)) << text;
  }
}

TEST(CharacterBpeTest, RejectsAVocabularyWithoutMerges) {
  const auto tokenizer = MakeTokenizer(Data({"a"}, {}));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().message(),
            "the vocabulary of kind 'gemma4' has no merges; needs at least one");
}

}  // namespace
}  // namespace kvcache::character_bpe_tokenizer_test
