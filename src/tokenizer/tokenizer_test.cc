#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcache::tokenizer_test {
namespace {

using Ids = std::vector<std::int32_t>;

enum : std::int32_t { kUnk, kBos, kEos, kSpaceA, kA, kSpace, kTurn, kBreak };

TokenizerData Small() {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>", "▁a", "a", "▁", "<turn>", "\n\n"};
  data.types = {2, 3, 3, 1, 1, 1, 3, 4};
  return data;
}

std::unique_ptr<Tokenizer> MakeOrDie(const TokenizerData& data) {
  auto tokenizer = MakeTokenizer(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

TEST(TokenizerTest, ErrorNamesAnUnknownKind) {
  TokenizerData data = Small();
  data.model = "rwkv";
  const auto tokenizer = MakeTokenizer(data);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      tokenizer.status().message(),
      "vocabulary kind 'rwkv' is not supported; supported: 'llama' (SentencePiece BPE), 'gpt2' "
      "(byte-level BPE), 't5' (unigram), 'gemma4' (character BPE), 'bert' (WordPiece)");
}

TEST(TokenizerTest, AddsBosAndEosPerFileOrOption) {
  struct Case {
    std::optional<bool> file_bos, file_eos;
    AddToken bos, eos;
    Ids ids;
  };
  const std::vector<Case> cases = {
      {{}, {}, AddToken::kPerFile, AddToken::kPerFile, {kBos, kSpaceA}},
      {false, true, AddToken::kPerFile, AddToken::kPerFile, {kSpaceA, kEos}},
      {false, false, AddToken::kYes, AddToken::kYes, {kBos, kSpaceA, kEos}},
      {true, true, AddToken::kNo, AddToken::kNo, {kSpaceA}},
  };
  for (const Case& c : cases) {
    TokenizerData data = Small();
    data.add_bos = c.file_bos;
    data.add_eos = c.file_eos;
    EXPECT_EQ(*MakeOrDie(data)->Encode("a", {.add_bos = c.bos, .add_eos = c.eos}), c.ids);
  }
  EXPECT_EQ(*MakeOrDie(Small())->Encode(""), Ids{kBos});
}

TEST(TokenizerTest, FindsControlTokensOnlyWithParse) {
  const auto tokenizer = MakeOrDie(Small());
  const EncodeOptions parse = {.special = SpecialText::kParse};
  EXPECT_EQ(*tokenizer->Encode("a<turn>a", parse), (Ids{kBos, kSpaceA, kTurn, kSpaceA}));
  EXPECT_EQ(tokenizer->Encode("a<turn>a")->at(2), kUnk);  // "<" has no token here
  EXPECT_EQ(*tokenizer->Encode("a\n\na"), (Ids{kBos, kSpaceA, kBreak, kSpaceA}));
}

// "[A]" is user-defined, but structure. Joining the parts of its text does not produce it.
TEST(TokenizerTest, FindsMarkersOfAnyTypeOnlyWithParse) {
  for (const char* kind : {"llama", "gpt2", "gemma4", "t5"}) {
    TokenizerData data;
    data.model = kind;
    data.pre = "gpt-2";
    data.tokens = {"<unk>", "<s>", "</s>", "[", "A", "]", "[A", "[A]", "<h1>"};
    data.types = {2, 3, 3, 1, 1, 1, 1, 4, 4};
    data.scores.assign(data.tokens.size(), 0.0f);
    data.merges = {"[ A", "[A ]"};
    data.bos = 1;
    data.add_space_prefix = false;
    const auto tokenizer = MakeOrDie(data);
    const EncodeOptions bare = {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo};
    EncodeOptions parse = bare;
    parse.special = SpecialText::kParse;
    EXPECT_EQ(*tokenizer->Encode("[A]<h1>", parse), (Ids{7, 8})) << kind;
    const Ids plain = *tokenizer->Encode("[A]<h1>", bare);
    EXPECT_TRUE(plain == (Ids{6, 5, 8}) || plain == (Ids{3, 4, 5, 8})) << kind;
  }
}

TEST(TokenizerTest, DecodingRemovesTheAddedSpaces) {
  const auto tokenizer = MakeOrDie(Small());
  const EncodeOptions parse = {.special = SpecialText::kParse};
  const DecodeOptions shown = {.control = ControlText::kShown};
  for (const std::string text :
       {"a", " a", "a a", "  ", "a\n\na", "\n\n a", "a<turn>a", " <turn> a", "<s>a</s>"}) {
    const Ids ids = *tokenizer->Encode(text, {.add_bos = AddToken::kNo, .special = parse.special});
    EXPECT_EQ(*tokenizer->Decode(ids, shown), text);
  }
  const Ids with_bos = *tokenizer->Encode("a a");
  EXPECT_EQ(*tokenizer->Decode(with_bos), "a a");
  EXPECT_EQ(*tokenizer->Decode(with_bos, shown), "<s>a a");
  EXPECT_EQ(*tokenizer->Decode(with_bos, {.leading_space = LeadingSpace::kKeep}), " a a");
}

TEST(TokenizerTest, DecodingKeepsSpacesIfNoneIsAdded) {
  TokenizerData data = Small();
  data.add_space_prefix = false;
  const auto tokenizer = MakeOrDie(data);
  EXPECT_EQ(*tokenizer->Decode(Ids{kSpaceA, kTurn, kSpaceA}), " a a");
}

TEST(TokenizerTest, ReturnsThePieceOfEachToken) {
  const auto tokenizer = MakeOrDie(Small());
  EXPECT_EQ(tokenizer->Piece(kSpaceA), " a");
  EXPECT_EQ(tokenizer->Piece(kBreak), "\n\n");
  EXPECT_EQ(tokenizer->Piece(kTurn), "");
  EXPECT_EQ(tokenizer->Piece(kTurn, ControlText::kShown), "<turn>");
  EXPECT_EQ(tokenizer->Piece(kUnk), "");
  EXPECT_EQ(tokenizer->Piece(-1), "");
  EXPECT_EQ(tokenizer->Piece(8), "");
}

TEST(TokenizerTest, DecodingRejectsIdsOutOfRange) {
  const auto tokenizer = MakeOrDie(Small());
  for (const std::int32_t bad : {-1, 8, 1 << 30}) {
    const auto text = tokenizer->Decode(Ids{kA, bad});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(text.status().message(), "token " + std::to_string(bad) +
                                           " at index 1 is outside the vocabulary; must be 0 to 7");
  }
}

TEST(TokenizerTest, ReturnsItsIds) {
  const auto tokenizer = MakeOrDie(Small());
  EXPECT_EQ(tokenizer->vocabulary_size(), 8);
  EXPECT_EQ(tokenizer->bos(), kBos);
  EXPECT_EQ(tokenizer->eos(), kEos);
  EXPECT_EQ(tokenizer->eot(), kNoToken);
  EXPECT_EQ(tokenizer->unknown(), kUnk);
  EXPECT_EQ(tokenizer->Find("▁a"), kSpaceA);
  EXPECT_EQ(tokenizer->Find(" a"), kNoToken);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(kEos));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(kTurn));
  EXPECT_EQ(tokenizer->Describe(), "SentencePiece BPE, 8 tokens, bos 1, eos 2, unknown 0");
}

}  // namespace
}  // namespace kvcache::tokenizer_test
