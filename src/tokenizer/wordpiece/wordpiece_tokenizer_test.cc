#include "tokenizer/wordpiece/wordpiece_tokenizer.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvcache::wordpiece_tokenizer_test {
namespace {

using Texts = std::vector<std::string>;

TokenizerData Data() {
  TokenizerData data;
  data.model = "bert";
  data.tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "able", "▁able", "a",
                 "▁a",    "▁e",    "e",     "s",     "▁,",  "▁中",  "▁É",    "▁\u1112\u1161\u11AB"};
  data.types.assign(data.tokens.size(), static_cast<std::int32_t>(TokenKind::kNormal));
  for (int i = 0; i < 4; ++i) data.types[static_cast<std::size_t>(i)] = 3;
  data.bos = 2;
  data.separator = 3;
  data.unknown = 1;
  data.padding = 0;
  return data;
}

std::unique_ptr<Tokenizer> Make(const TokenizerData& data) {
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

Texts Encode(const Tokenizer& tokenizer, std::string_view text, AddToken add = AddToken::kNo) {
  Texts texts;
  const auto ids = tokenizer.Encode(text, {.add_bos = add, .add_eos = add});
  for (const std::int32_t id : *ids) texts.emplace_back(tokenizer.vocabulary().text(id));
  return texts;
}

TEST(WordPiece, TakesTheLongestTokens) {
  const auto tokenizer = Make(Data());
  EXPECT_EQ(Encode(*tokenizer, "unable able  unables"),
            (Texts{"▁un", "able", "▁able", "▁un", "able", "s"}));
  EXPECT_EQ(Encode(*tokenizer, "a,a"), (Texts{"▁a", "▁,", "▁a"}));
  EXPECT_EQ(Encode(*tokenizer, "a中a"), (Texts{"▁a", "▁中", "▁a"}));
  EXPECT_EQ(Encode(*tokenizer, ""), Texts{});
}

TEST(WordPiece, PutsAWordThatHasNoTokensInOne) {
  const auto tokenizer = Make(Data());
  EXPECT_EQ(Encode(*tokenizer, "unablex a"), (Texts{"[UNK]", "▁a"}));
  EXPECT_EQ(Encode(*tokenizer, "a" + std::string(99, 's')).size(), 100);
  EXPECT_EQ(Encode(*tokenizer, "a" + std::string(100, 's')), Texts{"[UNK]"});
}

TEST(WordPiece, AddsTokensAroundTheText) {
  const auto tokenizer = Make(Data());
  EXPECT_EQ(Encode(*tokenizer, "a", AddToken::kPerFile), (Texts{"[CLS]", "▁a", "[SEP]"}));
  EXPECT_EQ(Encode(*tokenizer, "[CLS]"), (Texts{"[UNK]", "[UNK]", "[UNK]"}));
}

TEST(WordPiece, FoldsCaseAndAccents) {
  TokenizerData data = Data();
  const auto folded = Make(data);
  EXPECT_EQ(Encode(*folded, "ÉA Unable"), (Texts{"▁e", "a", "▁un", "able"}));
  EXPECT_EQ(Encode(*folded, "e\u0301 한"), (Texts{"▁e", "▁\u1112\u1161\u11AB"}));
  EXPECT_EQ(Encode(*folded, "a\x01\u200B\xFFs"), (Texts{"▁a", "s"}));
  data.strip_accents = data.lowercase = false;
  const auto cased = Make(data);
  EXPECT_EQ(Encode(*cased, "É e"), (Texts{"▁É", "▁e"}));
  EXPECT_EQ(Encode(*cased, "Unable"), Texts{"[UNK]"});
}

TEST(WordPiece, DecodesWords) {
  const auto tokenizer = Make(Data());
  EXPECT_EQ(*tokenizer->Decode(*tokenizer->Encode("Unable, a")), " unable , a");
  EXPECT_EQ(
      *tokenizer->Decode(*tokenizer->Encode("unable, a"), {.cleaning = SpaceCleaning::kPerFile}),
      " unable, a");
}

}  // namespace
}  // namespace kvcache::wordpiece_tokenizer_test
