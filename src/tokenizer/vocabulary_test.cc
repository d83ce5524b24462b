#include "tokenizer/vocabulary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvcache::vocabulary_test {
namespace {

TokenizerData Data(std::vector<std::string> tokens) {
  TokenizerData data;
  data.tokens = std::move(tokens);
  return data;
}

Vocabulary MakeOrDie(const TokenizerData& data) {
  auto vocabulary = Vocabulary::Make(data);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  return std::move(*vocabulary);
}

TEST(VocabularyTest, RejectsContradictoryData) {
  struct Case {
    TokenizerData data;
    std::string message;
  };
  std::vector<Case> cases;
  cases.push_back({Data({}), "the vocabulary has no tokens"});
  cases.push_back(
      {Data({"a", "b", "a"}),
       "the vocabulary's tokens: text 'a' is both number 0 and number 2; must occur once"});
  cases.push_back({Data({"a", "b"}),
                   "the vocabulary has 1 scores for 2 tokens; needs one for each token, or none"});
  cases.back().data.scores = {0};
  cases.push_back({Data({"a", "b"}),
                   "the vocabulary has 3 scores for 2 tokens; needs one for each token, or none"});
  cases.back().data.scores = {0, 0, 0};
  cases.push_back({Data({"a", "b"}),
                   "the vocabulary has 1 types for 2 tokens; needs one for each token, or none"});
  cases.back().data.types = {1};
  cases.push_back({Data({"a", "b"}), "token 1 has type 7; must be 0 to 6"});
  cases.back().data.types = {1, 7};
  cases.push_back({Data({"a", "b"}), "token 0 has type -1; must be 0 to 6"});
  cases.back().data.types = {-1, 1};
  cases.push_back({Data({"a", "b"}),
                   "token 2 strips white space, but is outside the vocabulary; must be 0 to 1"});
  cases.back().data.strip_after = {2};
  cases.push_back(
      {Data({std::string((1 << 22) + 1, 'x')}),
       "the texts of the special tokens take 4194305 bytes; at most 4194304 are allowed"});
  cases.back().data.types = {3};
  for (const Case& c : cases) {
    const auto vocabulary = Vocabulary::Make(c.data);
    ASSERT_FALSE(vocabulary.ok()) << c.message;
    EXPECT_EQ(vocabulary.status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(vocabulary.status().message(), c.message);
  }
}

TEST(VocabularyTest, DefaultsAreThoseOfTheKind) {
  const Vocabulary v = MakeOrDie(Data({"<unk>", "<s>", "</s>", "a"}));
  EXPECT_EQ(v.ids().unknown, 0);
  EXPECT_EQ(v.ids().bos, 1);
  EXPECT_EQ(v.ids().eos, 2);
  EXPECT_EQ(v.ids().eot, kNoToken);
  EXPECT_TRUE(v.add_bos());
  EXPECT_FALSE(v.add_eos());
  EXPECT_TRUE(v.add_space_prefix());
  EXPECT_EQ(v.score(3), 0);
  EXPECT_EQ(v.kind(3), TokenKind::kNormal);
}

TEST(VocabularyTest, IdsOutOfRangeTakeTheDefault) {
  TokenizerData data = Data({"a", "b"});
  data.bos = 4294967295;
  data.eos = -1;
  data.unknown = 1;
  data.padding = 2;
  const Vocabulary v = MakeOrDie(data);
  EXPECT_EQ(v.ids().bos, 1);
  EXPECT_EQ(v.ids().eos, kNoToken);
  EXPECT_EQ(v.ids().unknown, 1);
  EXPECT_EQ(v.ids().padding, kNoToken);
}

TEST(VocabularyTest, IdsOutOfRangeLeaveNotes) {
  TokenizerData data = Data({"<unk>", "<s>", "</s>", "a", "b"});
  data.bos = 5000;
  data.eos = 4294967295;  // none
  data.unknown = -1;      // none
  data.padding = 5;
  data.fim_prefix = -7;
  const Vocabulary v = MakeOrDie(data);
  EXPECT_EQ(v.ids().bos, 1);
  EXPECT_EQ(v.ids().eos, 2);
  EXPECT_EQ(v.notes(),
            (std::vector<std::string>{
                "tokenizer.ggml.bos_token_id is 5000, but the vocabulary has 5 tokens; token 1 "
                "('<s>') is used",
                "tokenizer.ggml.padding_token_id is 5, but the vocabulary has 5 tokens; no token "
                "is used",
                "tokenizer.ggml.fim_pre_token_id is -7, but the vocabulary has 5 tokens; no token "
                "is used"}));
  EXPECT_TRUE(MakeOrDie(Data({"a"})).notes().empty());
}

TEST(VocabularyTest, TypeShapeAndRoleDetermineStructure) {
  TokenizerData data = Data({"<unk>", "<s>", "</s>", "[INST]", "<h1>", "\n\n", "Q:", "PAD:", "word",
                             "<|x|>", "<0x0A>", "▁##", "###"});
  data.types = {2, 4, 3, 4, 4, 4, 4, 4, 1, 1, 6, 4, 4};
  data.padding = 7;
  const Vocabulary v = MakeOrDie(data);
  const std::vector<bool> structure = {true, true,  true,  true,  false, false, false,
                                       true, false, false, false, false, false};
  const std::vector<bool> merged = {false, false, false, false, false, true, false,
                                    false, true,  true,  false, true,  true};
  for (std::int32_t token = 0; token < v.size(); ++token) {
    EXPECT_EQ(v.IsStructure(token), structure[static_cast<std::size_t>(token)]) << token;
    EXPECT_EQ(v.CanBeMerged(token), merged[static_cast<std::size_t>(token)]) << token;
  }
}

TEST(VocabularyTest, ByteTokensWithAndWithoutKinds) {
  TokenizerData data = Data({"<unk>", "<s>", "</s>", "<0x0A>", "<0xE2>", "x", "\xFF", "<0x0a>"});
  const Vocabulary untyped = MakeOrDie(data);
  EXPECT_EQ(untyped.kind(3), TokenKind::kByte);
  EXPECT_EQ(untyped.TokenByte(3), 0x0A);
  EXPECT_EQ(untyped.TokenByte(4), 0xE2);
  EXPECT_EQ(untyped.ByteToken(0x0A), 3);
  EXPECT_EQ(untyped.ByteToken('x'), 5);  // no "<0x78>": the byte itself
  EXPECT_EQ(untyped.ByteToken(0xFF), 6);
  EXPECT_EQ(untyped.ByteToken('y'), kNoToken);
  data.types = {2, 3, 3, 6, 1, 6, 1, 6};
  const Vocabulary typed = MakeOrDie(data);
  EXPECT_EQ(typed.kind(4), TokenKind::kNormal);
  EXPECT_EQ(typed.kind(5), TokenKind::kNormal);  // a byte token without a byte
  EXPECT_EQ(typed.kind(7), TokenKind::kByte);
}

// Any text may fall back to byte tokens, so a control token is never one.
TEST(VocabularyTest, StructureIsNeverAByteToken) {
  TokenizerData data = Data({"<unk>", "<s>", "</s>", "<0x0A>", "\n", "<0x7C>", "|"});
  data.types = {2, 3, 3, 3, 1, 6, 3};
  EXPECT_EQ(MakeOrDie(data).ByteToken('\n'), 4);
  EXPECT_EQ(MakeOrDie(data).ByteToken('|'), 5);
  data.types = {2, 3, 3, 3, 3, 3, 3};
  EXPECT_EQ(MakeOrDie(data).ByteToken('\n'), kNoToken);
  EXPECT_EQ(MakeOrDie(data).ByteToken('|'), kNoToken);
}

// Files may give these tokens the type normal and texts that are words.
TEST(VocabularyTest, BeginAndEndsAreStructureWhateverTheirTypeAndText) {
  for (const std::int32_t type : {0, 1, 3, 4, 5}) {
    TokenizerData data = Data({"<unk>", "BOS", "EOS", "</s>", "eot", "eom", "!", "a"});
    data.types = {2, type, type, type, type, type, type, 1};
    data.bos = 1;
    data.eos = 3;
    data.eot = 4;
    data.eom = 5;
    data.padding = 6;
    const Vocabulary v = MakeOrDie(data);
    for (const std::int32_t token : {1, 3, 4, 5}) {
      EXPECT_TRUE(v.IsStructure(token)) << token << ", type " << type;
      EXPECT_FALSE(v.CanBeMerged(token)) << token << ", type " << type;
      EXPECT_EQ(std::count(v.special_tokens().begin(), v.special_tokens().end(), token), 1);
    }
    EXPECT_EQ(v.IsStructure(6), type == 3) << "padding is often an ordinary text";
  }
}

TEST(VocabularyTest, KnownTextsEndTheAnswer) {
  const Vocabulary v =
      MakeOrDie(Data({"<unk>", "<s>", "stop", "<|im_end|>", "<end_of_turn>", "<|file_sep|>", "a"}));
  EXPECT_EQ(v.ids().eot, 3);
  EXPECT_EQ(v.ids().fim_separator, 5);
  const std::vector<bool> ends = {false, false, true, true, true, true, false};
  for (std::int32_t token = -2; token < 10; ++token) {
    const bool expected = v.Has(token) && ends[static_cast<std::size_t>(token)];
    EXPECT_EQ(v.IsEndOfGeneration(token), expected) << token;
  }
  EXPECT_EQ(v.kind(2), TokenKind::kNormal);  // eos by its id alone
  EXPECT_EQ(v.kind(3), TokenKind::kControl);
  EXPECT_EQ(v.kind(4), TokenKind::kControl);
}

TEST(VocabularyTest, GivenIdsComeBeforeTexts) {
  TokenizerData data = Data({"<unk>", "<s>", "</s>", "<|end|>", "end"});
  data.eot = 4;
  const Vocabulary v = MakeOrDie(data);
  EXPECT_EQ(v.ids().eot, 4);
  EXPECT_TRUE(v.IsEndOfGeneration(4));
  EXPECT_TRUE(v.IsEndOfGeneration(3));
}

TEST(VocabularyTest, InnerEndsDoNotEndTheAnswer) {
  const Vocabulary harmony =
      MakeOrDie(Data({"x", "y", "z", "<|end|>", "<|call|>", "<|return|>", "<|channel|>"}));
  EXPECT_FALSE(harmony.IsEndOfGeneration(3));
  EXPECT_EQ(harmony.kind(3), TokenKind::kUserDefined);
  EXPECT_TRUE(harmony.IsEndOfGeneration(4));
  EXPECT_TRUE(harmony.IsEndOfGeneration(5));
  EXPECT_EQ(harmony.kind(6), TokenKind::kUserDefined);
  const Vocabulary tools = MakeOrDie(Data({"x", "y", "z", "</s>", "<|tool_response>"}));
  EXPECT_FALSE(tools.IsEndOfGeneration(3));
  EXPECT_EQ(tools.kind(3), TokenKind::kNormal);
}

TEST(VocabularyTest, SpecialTokensLongestFirstThenById) {
  TokenizerData data = Data({"<unk>", "ab", "a", "cd", "", "longest", "plain"});
  data.types = {2, 3, 4, 4, 3, 3, 1};
  EXPECT_EQ(MakeOrDie(data).special_tokens(), (std::vector<std::int32_t>{5, 0, 1, 3, 2}));
}

}  // namespace
}  // namespace kvcache::vocabulary_test
