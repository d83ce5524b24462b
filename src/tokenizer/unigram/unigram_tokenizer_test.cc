#include "tokenizer/unigram/unigram_tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tokenizer/unigram/unigram_reference_testing.h"

namespace kvcache::unigram_tokenizer_test {
namespace {

using Ids = std::vector<std::int32_t>;

// The tokens <pad> </s> <unk>, then the given ones from 3 on.
TokenizerData Data(const std::vector<std::pair<std::string, float>>& tokens) {
  TokenizerData data;
  data.model = "t5";
  data.tokens = {"<pad>", "</s>", "<unk>"};
  data.types = {3, 3, 2};
  data.scores = {0, 0, 0};
  for (const auto& [text, score] : tokens) {
    data.tokens.push_back(text);
    data.types.push_back(1);
    data.scores.push_back(score);
  }
  return data;
}

std::unique_ptr<Tokenizer> MakeOrDie(const TokenizerData& data) {
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text) {
  auto tokens = tokenizer.Encode(text, {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo});
  EXPECT_TRUE(tokens.ok()) << tokens.status().message();
  return std::move(*tokens);
}

TEST(UnigramTokenizerTest, TheLargestSumWins) {
  const auto tokenizer = MakeOrDie(Data({{"a", -1}, {"b", -1}, {"ab", -1.5f}, {"bb", -3}}));
  const std::int32_t a = 3, b = 4, ab = 5;
  EXPECT_EQ(Encode(*tokenizer, "ab"), (Ids{ab}));
  EXPECT_EQ(Encode(*tokenizer, "abb"), (Ids{ab, b}));
  EXPECT_EQ(Encode(*tokenizer, "bb"), (Ids{b, b}));
  EXPECT_EQ(Encode(*tokenizer, "ba"), (Ids{b, a}));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
}

TEST(UnigramTokenizerTest, LongestLastTokenWinsAmongEqualSums) {
  const auto tokenizer = MakeOrDie(Data({{"a", -1}, {"aa", -2}, {"aaa", -3}}));
  EXPECT_EQ(Encode(*tokenizer, "aaa"), (Ids{5}));
  EXPECT_EQ(Encode(*tokenizer, "aaaa"), (Ids{3, 5}));
}

TEST(UnigramTokenizerTest, UnknownCharactersInARowAreOneToken) {
  const auto tokenizer = MakeOrDie(Data({{"a", -1}, {"xy", -50}}));
  EXPECT_EQ(Encode(*tokenizer, "é中!"), (Ids{2}));
  EXPECT_EQ(Encode(*tokenizer, "aéa中中"), (Ids{3, 2, 3, 2}));
  // A token whose characters are not tokens wins over two unknown tokens.
  EXPECT_EQ(Encode(*tokenizer, "xy"), (Ids{4}));
  EXPECT_EQ(Encode(*tokenizer, "\xFF\xE2\x82"), (Ids{2}));
}

TEST(UnigramTokenizerTest, SpacesFollowTheFlags) {
  const std::vector<std::pair<std::string, float>> tokens = {{"a", -1}, {"▁", -1}, {"b", -1}};
  const std::int32_t a = 3, s = 4, b = 5;
  const struct {
    bool prefix;
    bool merge;
    const char* text;
    Ids expected;
  } rows[] = {
      {false, false, "a  b ", {a, s, s, b, s}},
      {true, false, "a  b ", {s, a, s, s, b, s}},
      {true, false, "  a", {s, s, s, a}},
      {true, true, " a  b ", {s, a, s, b}},
      {false, true, "a b", {s, a, s, b}},
      {true, true, "   ", {}},
      {true, false, "  ", {s, s}},
      {false, false, "▁a", {s, a}},
  };
  for (const auto& row : rows) {
    TokenizerData data = Data(tokens);
    data.add_space_prefix = row.prefix;
    data.remove_extra_spaces = row.merge;
    EXPECT_EQ(Encode(*MakeOrDie(data), row.text), row.expected) << row.text;
  }
}

TEST(UnigramTokenizerTest, UserDefinedTokensAreFoundAndCostNothing) {
  TokenizerData data = Data({{"a", -1}, {"<b>", -9}, {"unused", -1}, {"<x>", -9}});
  data.types[4] = 4;
  data.types[5] = 5;
  data.types[6] = 4;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "a<b>a"), (Ids{3, 4, 3}));
  EXPECT_EQ(Encode(*tokenizer, "a<x>a"), (Ids{3, 2, 3}));  // a marker
  EXPECT_EQ(Encode(*tokenizer, "unused"), (Ids{5}));
}

TEST(UnigramTokenizerTest, EndsAreAddedPerKindAndPerFile) {
  TokenizerData data = Data({{"a", -1}});
  EXPECT_EQ(*MakeOrDie(data)->Encode("a"), (Ids{3, 1}));
  data.add_eos = false;
  EXPECT_EQ(*MakeOrDie(data)->Encode("a"), (Ids{3}));
  EXPECT_EQ(MakeOrDie(data)->Describe(), "unigram, 4 tokens, eos 1, unknown 2");
}

TEST(UnigramTokenizerTest, DecodingRemovesThePrefix) {
  TokenizerData data = Data({{"▁a", -1}, {"b", -1}, {"▁", -2}});
  data.add_space_prefix = true;
  const auto tokenizer = MakeOrDie(data);
  for (const char* text : {"a", "ab", "b", "a a", "ab b", ""}) {
    EXPECT_EQ(*tokenizer->Decode(*tokenizer->Encode(text)), text);
  }
  EXPECT_EQ(tokenizer->Piece(3), " a");
}

TEST(UnigramTokenizerTest, RejectsTokensThatAreTooLong) {
  EXPECT_TRUE(MakeTokenizer(Data({{std::string(1024, 'a'), -1}})).ok());
  const auto tokenizer = MakeTokenizer(Data({{std::string(1025, 'a'), -1}}));
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(tokenizer.status().message(),
            "token 3 has 1025 bytes; at most 1024 are allowed in a vocabulary of kind 't5'");
}

TEST(UnigramTokenizerTest, RejectsABrokenCharsmap) {
  TokenizerData data = Data({{"a", -1}});
  data.charsmap = "abc";
  EXPECT_EQ(MakeTokenizer(data).status().code(), StatusCode::kCorrupt);
}

TEST(UnigramTokenizerTest, MatchesTheReference) {
  std::mt19937_64 random(2);
  const std::vector<std::string> letters = {"a", "b", " ", "é", "中", "▁"};
  for (int round = 0; round < 40; ++round) {
    std::vector<std::pair<std::string, float>> tokens;
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (std::uint64_t n = 1 + random() % 5; n > 0; --n) {
        const std::string& letter = letters[random() % letters.size()];
        text += letter == " " ? "▁" : letter;
      }
      const bool known = std::any_of(tokens.begin(), tokens.end(),
                                     [&](const auto& token) { return token.first == text; });
      if (!known) tokens.emplace_back(text, -static_cast<float>(random() % 8) / 2);
    }
    TokenizerData data = Data(tokens);
    const bool prefix = random() % 2 == 0;
    const bool merge = random() % 2 == 0;
    data.add_space_prefix = prefix;
    data.remove_extra_spaces = merge;
    const auto tokenizer = MakeOrDie(data);
    for (int n = 0; n < 50; ++n) {
      std::string text;
      for (std::uint64_t i = random() % 40; i > 0; --i) text += letters[random() % letters.size()];
      const std::string normalized = unigram_reference::Normalize(text, prefix, merge);
      ASSERT_EQ(Encode(*tokenizer, text),
                unigram_reference::Encode(tokenizer->vocabulary(), normalized))
          << text;
    }
  }
}

}  // namespace
}  // namespace kvcache::unigram_tokenizer_test
