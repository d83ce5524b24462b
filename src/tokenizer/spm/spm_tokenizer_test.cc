#include "tokenizer/spm/spm_tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tokenizer/spm/spm_reference_testing.h"

namespace kvcache::spm_tokenizer_test {
namespace {

std::unique_ptr<Tokenizer> MakeOrDie(const TokenizerData& data) {
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

// The tokens <unk> <s> </s>, the 256 bytes (byte b is 3 + b), then the given ones from 259 on.
TokenizerData WithBytes(const std::vector<std::pair<std::string, float>>& tokens) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    data.tokens.push_back({'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'});
    data.types.push_back(6);
  }
  data.scores.resize(data.tokens.size());
  for (const auto& [text, score] : tokens) {
    data.tokens.push_back(text);
    data.types.push_back(1);
    data.scores.push_back(score);
  }
  return data;
}

using Ids = std::vector<std::int32_t>;

Ids Encode(const Tokenizer& tokenizer, std::string_view text,
           SpecialText special = SpecialText::kPlain) {
  auto tokens = tokenizer.Encode(text, {.add_bos = AddToken::kNo, .special = special});
  EXPECT_TRUE(tokens.ok()) << tokens.status().message();
  return std::move(*tokens);
}

TEST(SpmTokenizerTest, JoinsTheBestScoreFirstThenTheLeftmost) {
  TokenizerData data =
      WithBytes({{"a", 0}, {"b", 0}, {"ab", -1}, {"ba", -2}, {"aba", -3}, {"aa", -1}, {"bb", 5}});
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  const std::int32_t a = 259, b = 260, ab = 261, aba = 263, aa = 264, bb = 265;
  EXPECT_EQ(Encode(*tokenizer, "ab"), (Ids{ab}));
  EXPECT_EQ(Encode(*tokenizer, "aab"), (Ids{aa, b}));  // equal scores: the left one
  EXPECT_EQ(Encode(*tokenizer, "aba"), (Ids{aba}));    // ab, then ab + a
  EXPECT_EQ(Encode(*tokenizer, "abb"), (Ids{a, bb}));  // the better score
  EXPECT_EQ(Encode(*tokenizer, "aaa"), (Ids{aa, a}));
  EXPECT_EQ(Encode(*tokenizer, "c"), (Ids{3 + 'c'}));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
}

TEST(SpmTokenizerTest, JoinsCharactersThatAreNoTokens) {
  TokenizerData data = WithBytes({{"éa", 0}});
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "éaé"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
}

TEST(SpmTokenizerTest, ReturnsNoTokenThatJoiningCannotReach) {
  TokenizerData data = WithBytes({{"abc", 0}, {"a", 0}});
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  for (int i = 0; i < 2; ++i) {  // the second time from the stored result
    EXPECT_EQ(Encode(*tokenizer, "abc"), (Ids{260, 3 + 'b', 3 + 'c'}));
  }
}

TEST(SpmTokenizerTest, EncodesSpacesAndThePrefix) {
  const std::vector<std::pair<std::string, float>> tokens = {
      {"▁", 0}, {"▁▁", -1}, {"▁a", -2}, {"a", -3}};
  TokenizerData data = WithBytes(tokens);
  const auto with = MakeOrDie(data);
  EXPECT_EQ(Encode(*with, "a"), (Ids{261}));
  EXPECT_EQ(Encode(*with, " a"), (Ids{260, 262}));
  EXPECT_EQ(Encode(*with, " "), (Ids{260}));
  EXPECT_EQ(Encode(*with, "a</s>a", SpecialText::kParse), (Ids{261, 2, 261}));
  EXPECT_EQ(Encode(*with, "▁a"), (Ids{260, 262}));  // U+2581 is a space too
  data.add_space_prefix = false;
  const auto without = MakeOrDie(data);
  EXPECT_EQ(Encode(*without, "a a"), (Ids{262, 261}));
  EXPECT_EQ(Encode(*without, "  a"), (Ids{260, 262}));
}

TEST(SpmTokenizerTest, BrokenTextFallsBackToBytes) {
  TokenizerData data = WithBytes({{"a", 0},
                                  {"\xE2\x96", 0},
                                  {"\xF0"
                                   "a",
                                   0}});
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "a\x80"), (Ids{259, 3 + 0x80}));
  EXPECT_EQ(Encode(*tokenizer, "\xE2\x96"), (Ids{260}));  // cut short at the end
  EXPECT_EQ(Encode(*tokenizer,
                   "\xF0"
                   "a"),
            (Ids{261}));  // the next byte belongs to the character
  EXPECT_EQ(Encode(*tokenizer,
                   "\xF0"
                   "aaa"),
            (Ids{3 + 0xF0, 3 + 'a', 3 + 'a', 3 + 'a'}));
  EXPECT_EQ(Encode(*tokenizer, "\xF0 a"), (Ids{3 + 0xF0, 3 + 0xE2, 3 + 0x96, 3 + 0x81, 259}));
  EXPECT_EQ(Encode(*tokenizer, std::string(1, '\0')), (Ids{3}));
}

TEST(SpmTokenizerTest, WithoutByteTokensACharacterIsUnknown) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>", "▁", "a", "<0xC3>"};
  data.types = {2, 3, 3, 1, 1, 6};
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "aéab"), (Ids{3, 4, 0, 4, 0}));
}

TEST(SpmTokenizerTest, TextNeverBecomesAControlOrByteToken) {
  TokenizerData data =
      WithBytes({{"<", 0}, {"/", 0}, {"s", 0}, {">", 0}, {"</", 0}, {"</s", 0}, {"<0x0A", 0}});
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "</s>"), (Ids{264, 262}));
  EXPECT_EQ(Encode(*tokenizer, "</s>", SpecialText::kParse), (Ids{2}));
  EXPECT_EQ(*tokenizer->Decode(Encode(*tokenizer, "<0x0A>")), "<0x0A>");
}

TEST(SpmTokenizerTest, OrdersInfinitiesNanAndZeros) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  TokenizerData data =
      WithBytes({{"ab", -kInf}, {"bc", std::nanf("")}, {"cd", -0.0f}, {"de", 0.0f}, {"ef", kInf}});
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "abc"), (Ids{259, 3 + 'c'}));  // NaN is below all
  EXPECT_EQ(Encode(*tokenizer, "cde"), (Ids{261, 3 + 'e'}));  // -0 is 0: the left one
  EXPECT_EQ(Encode(*tokenizer, "def"), (Ids{3 + 'd', 263}));
}

const std::vector<std::string>& Alphabet() {
  static const std::vector<std::string> alphabet = {
      "a", "b", "c", "▁", "é", "中", "\xF0\x9F\x98\x80", "\x80", "\xE2", "<"};
  return alphabet;
}

std::string RandomText(std::mt19937& random, std::size_t longest, std::size_t letters) {
  std::string text;
  for (std::size_t n = 1 + random() % longest; n > 0; --n) {
    text += random() % 6 == 0 ? " " : Alphabet()[random() % letters];
  }
  return text;
}

TEST(SpmTokenizerTest, AgreesWithTheRuleOnRandomVocabularies) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const std::size_t letters = 2 + random() % (Alphabet().size() - 1);
    std::map<std::string, float> tokens;
    for (std::size_t n = random() % 120; n > 0; --n) {
      std::string text;
      for (std::size_t k = 1 + random() % 5; k > 0; --k) text += Alphabet()[random() % letters];
      tokens[text] = static_cast<float>(random() % 9) - 6;
    }
    TokenizerData data = WithBytes({tokens.begin(), tokens.end()});
    for (std::size_t i = 259; i < data.types.size(); ++i) {
      if (random() % 16 == 0) data.types[i] = std::array{0, 3, 5}[random() % 3];
    }
    data.add_space_prefix = random() % 2 == 0;
    const auto tokenizer = MakeOrDie(data);
    for (int i = 0; i < 40; ++i) {
      const std::string text = RandomText(random, i < 36 ? 30 : 300, letters);
      ASSERT_EQ(Encode(*tokenizer, text), spm_reference::Encode(tokenizer->vocabulary(), text))
          << text;
    }
  }
}

// Every run of 2^n letters is a token, so joins form deep trees.
TEST(SpmTokenizerTest, EncodesAMillionEqualLetters) {
  TokenizerData data = WithBytes({{"a", 0}});
  for (int power = 1; power <= 10; ++power) {
    data.tokens.push_back(std::string(std::size_t{1} << power, 'a'));
    data.types.push_back(1);
    data.scores.push_back(static_cast<float>(-power));
  }
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  const Ids ids = Encode(*tokenizer, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, Ids(std::size_t{1} << 10, tokenizer->Find(std::string(1024, 'a'))));
  EXPECT_EQ(Encode(*tokenizer, std::string((1 << 20) + 5, 'a')).size(), (1u << 10) + 2);
}

TEST(SpmTokenizerTest, ThreadsMayEncodeConcurrently) {
  const auto tokenizer =
      MakeOrDie(WithBytes({{"▁", 0}, {"a", 0}, {"ab", 1}, {"▁ab", 2}, {"b", 0}}));
  const std::string text = "ab ab b a bab ab";
  const Ids expected = Encode(*tokenizer, text);
  const auto fresh = MakeOrDie(WithBytes({{"▁", 0}, {"a", 0}, {"ab", 1}, {"▁ab", 2}, {"b", 0}}));
  std::vector<std::thread> threads;
  std::atomic<int> agreed = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) agreed += Encode(*fresh, text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(agreed, 800);
}

}  // namespace
}  // namespace kvcache::spm_tokenizer_test
