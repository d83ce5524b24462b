#include "tokenizer/bpe/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tokenizer/bpe/bpe_reference_testing.h"
#include "tokenizer/bpe/byte_alphabet.h"

namespace kvcache::bpe_tokenizer_test {
namespace {

using Ids = std::vector<std::int32_t>;

// The 256 bytes (byte b is token b), then the given tokens, of type normal, from 256 on.
TokenizerData Data(std::string pre, const std::vector<std::string>& tokens,
                   const std::vector<std::string>& merges) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = std::move(pre);
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(SpellBytes(std::string(1, static_cast<char>(byte))));
  }
  data.tokens.insert(data.tokens.end(), tokens.begin(), tokens.end());
  data.types.assign(data.tokens.size(), 1);
  data.merges = merges;
  return data;
}

std::unique_ptr<Tokenizer> MakeOrDie(const TokenizerData& data) {
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text,
           SpecialText special = SpecialText::kPlain) {
  auto tokens = tokenizer.Encode(text, {.add_bos = AddToken::kNo, .special = special});
  EXPECT_TRUE(tokens.ok()) << tokens.status().message();
  return std::move(*tokens);
}

TEST(BpeTokenizerTest, MergesTheFirstListedThenTheLeftmost) {
  const auto tokenizer =
      MakeOrDie(Data("gpt-2", {"ab", "bc", "abc", "aa"}, {"b c", "a b", "a bc", "a a"}));
  const std::int32_t ab = 256, bc = 257, abc = 258, aa = 259;
  EXPECT_EQ(Encode(*tokenizer, "abc"), (Ids{abc}));  // bc first, then a + bc
  EXPECT_EQ(Encode(*tokenizer, "ab"), (Ids{ab}));
  EXPECT_EQ(Encode(*tokenizer, "bbc"), (Ids{'b', bc}));
  EXPECT_EQ(Encode(*tokenizer, "aaa"), (Ids{aa, 'a'}));
  EXPECT_EQ(Encode(*tokenizer, "aab"), (Ids{'a', ab}));
  EXPECT_EQ(Encode(*tokenizer, ""), Ids{});
}

TEST(BpeTokenizerTest, IgnoreMergesFindsTokensThatMergingMisses) {
  const std::vector<std::string> tokens = {"ab", "xyz"};
  const auto merging = MakeOrDie(Data("gpt-2", tokens, {"a b"}));
  const auto ignoring = MakeOrDie(Data("llama-bpe", tokens, {"a b"}));
  for (int i = 0; i < 2; ++i) {  // the second time from the stored result
    EXPECT_EQ(Encode(*merging, "xyz"), (Ids{'x', 'y', 'z'}));
    EXPECT_EQ(Encode(*ignoring, "xyz"), (Ids{257}));
    EXPECT_EQ(Encode(*ignoring, "xyzab"), (Ids{'x', 'y', 'z', 256}));
  }
}

TEST(BpeTokenizerTest, SplitsAResultThatIsNotAToken) {
  // "abc" is not a token, but "ab" is. "xy" is a merge, but part of no token.
  const auto tokenizer = MakeOrDie(Data("gpt-2", {"ab", "abcd"}, {"a b", "ab c", "abc d", "x y"}));
  EXPECT_EQ(Encode(*tokenizer, "abc"), (Ids{256, 'c'}));
  EXPECT_EQ(Encode(*tokenizer, "abcd"), (Ids{257}));
  EXPECT_EQ(Encode(*tokenizer, "xyz"), (Ids{'x', 'y', 'z'}));
}

TEST(BpeTokenizerTest, AByteWithoutATokenIsUnknownOrOmitted) {
  TokenizerData data = Data("gpt-2", {}, {"a b"});
  data.tokens['q'] = "somethingelse";
  EXPECT_EQ(Encode(*MakeOrDie(data), "aqa"), (Ids{'a', 'a'}));
  data.unknown = 7;
  EXPECT_EQ(Encode(*MakeOrDie(data), "aqa"), (Ids{'a', 7, 'a'}));
}

TEST(BpeTokenizerTest, PlainTextNeverBecomesAControlToken) {
  TokenizerData data = Data("llama-bpe", {"end", "en"}, {"e n", "en d"});
  data.types[256] = 3;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(Encode(*tokenizer, "end"), (Ids{257, 'd'}));
  EXPECT_EQ(Encode(*tokenizer, "end", SpecialText::kParse), (Ids{256}));
}

TEST(BpeTokenizerTest, SkipsMalformedMerges) {
  const auto tokenizer =
      MakeOrDie(Data("gpt-2", {"ab"}, {"", " ", "a", "a ", " b", "中 文", "a b", "b a a", "a b"}));
  EXPECT_EQ(Encode(*tokenizer, "ab ba"), (Ids{256, ' ', 'b', 'a'}));
}

TEST(BpeTokenizerTest, BrokenUtf8BecomesTheReplacementCharacter) {
  const auto tokenizer = MakeOrDie(Data("qwen2", {}, {"a b"}));
  EXPECT_EQ(Encode(*tokenizer, "a\xE2\x82z"), (Ids{'a', 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD, 'z'}));
}

TEST(BpeTokenizerTest, AddsBosPerFileElsePerPreTokenizer) {
  const struct {
    const char* pre;
    std::optional<bool> add_bos;
    Ids expected;
  } rows[] = {{"llama-bpe", {}, {5, 'a'}}, {"tekken", {}, {5, 'a'}},    {"qwen2", {}, {'a'}},
              {"gpt-2", {}, {'a'}},        {"llama-bpe", false, {'a'}}, {"qwen2", true, {5, 'a'}}};
  for (const auto& row : rows) {
    TokenizerData data = Data(row.pre, {}, {"a b"});
    data.bos = 5;
    data.add_bos = row.add_bos;
    EXPECT_EQ(*MakeOrDie(data)->Encode("a"), row.expected) << row.pre;
  }
  TokenizerData none = Data("llama-bpe", {}, {"a b"});
  const auto tokenizer = MakeOrDie(none);
  EXPECT_EQ(tokenizer->bos(), kNoToken);
  EXPECT_EQ(tokenizer->eos(), kNoToken);
  EXPECT_EQ(*tokenizer->Encode("a"), (Ids{'a'}));
}

TEST(BpeTokenizerTest, DecodesBytesAndKeepsOtherTexts) {
  TokenizerData data = Data("gpt-2", {"Ġthe", "<turn>", "Ġuser", "▁x", "Ġ中", "<0x41>"}, {"a b"});
  data.types[257] = 3;
  data.types[258] = 4;
  data.types[261] = 6;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(tokenizer->Piece(256), " the");
  EXPECT_EQ(tokenizer->Piece(257), "");
  EXPECT_EQ(tokenizer->Piece(257, ControlText::kShown), "<turn>");
  EXPECT_EQ(tokenizer->Piece(258), "Ġuser");  // user-defined: found in text in this spelling
  EXPECT_EQ(tokenizer->Piece(259), "▁x");     // outside the byte alphabet
  EXPECT_EQ(tokenizer->Piece(260), " 中");
  EXPECT_EQ(tokenizer->Piece(261), "A");
  EXPECT_EQ(tokenizer->Piece(0xE2), "\xE2");
  EXPECT_EQ(*tokenizer->Decode(Ids{256, 'a', ' ', '.'}), " thea .");
  EXPECT_EQ(*tokenizer->Decode(Ids{256, 'a', ' ', '.'}, {.cleaning = SpaceCleaning::kPerFile}),
            " thea.");
  const auto exact = MakeOrDie(Data("qwen2", {}, {"a b"}));
  EXPECT_EQ(*exact->Decode(Ids{'a', ' ', '.'}, {.cleaning = SpaceCleaning::kPerFile}), "a .");
}

TEST(BpeTokenizerTest, DescribesItselfAndRejectsMissingMerges) {
  EXPECT_EQ(MakeOrDie(Data("llama-bpe", {}, {"a b"}))->Describe(),
            "byte-level BPE (llama-bpe), 256 tokens");
  const auto no_merges = MakeTokenizer(Data("llama-bpe", {}, {}));
  EXPECT_EQ(no_merges.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(no_merges.status().message(),
            "the vocabulary of kind 'gpt2' has no merges; needs at least one");
  const auto unknown = MakeTokenizer(Data("klingon", {}, {"a b"}));
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnsupported);
}

// Few letters and many merges; words shorter and longer than the length at which the algorithm
// changes.
TEST(BpeTokenizerTest, MatchesTheReference) {
  std::mt19937_64 random(11);
  const std::vector<std::string> letters = {"a", "b", "c", " ", "é"};
  for (int round = 0; round < 30; ++round) {
    TokenizerData data = Data(round % 2 == 0 ? "gpt-2" : "llama-bpe", {}, {});
    std::vector<std::string> symbols = {"a", "b", "c", " ", "\xC3", "\xA9"};
    for (int i = 0; i < 60; ++i) {
      const std::string left = symbols[random() % symbols.size()];
      const std::string right = symbols[random() % symbols.size()];
      data.merges.push_back(SpellBytes(left) + " " + SpellBytes(right));
      symbols.push_back(left + right);
      const bool is_new = std::find(data.tokens.begin(), data.tokens.end(),
                                    SpellBytes(left + right)) == data.tokens.end();
      if (random() % 4 == 0 || !is_new) continue;
      data.tokens.push_back(SpellBytes(left + right));
      data.types.push_back(random() % 10 == 0 ? 3 : 1);
    }
    const auto tokenizer = MakeOrDie(data);
    const bpe_reference::Reference reference(data, tokenizer->vocabulary());
    for (int n = 0; n < 60; ++n) {
      std::string text;
      for (std::uint64_t i = random() % (n % 3 == 0 ? 200 : 20); i > 0; --i) {
        text += letters[random() % letters.size()];
      }
      ASSERT_EQ(Encode(*tokenizer, text), reference.Encode(text)) << text;
    }
  }
}

TEST(BpeTokenizerTest, LongWordsAreNotQuadratic) {
  std::string run = "a";
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  for (int n = 0; n < 5; ++n, run += run) {
    merges.push_back(run + " " + run);
    tokens.push_back(run + run);
  }
  const auto tokenizer = MakeOrDie(Data("gpt-2", tokens, merges));
  const Ids ids = Encode(*tokenizer, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, Ids(1 << 15, 260));
}

TEST(BpeTokenizerTest, ThreadsMayEncodeConcurrently) {
  const auto tokenizer = MakeOrDie(Data("gpt-2", {"ab", "abc", "xyz"}, {"a b", "ab c"}));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto ids = tokenizer->Encode("abc xyz", {.add_bos = AddToken::kNo});
        if (*ids != Ids{257, ' ', 'x', 'y', 'z'}) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kvcache::bpe_tokenizer_test
