#include "spm_vocabulary/spm_trainer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "spm_vocabulary/invented_text.h"

namespace kvcache::spm_vocabulary {
namespace {

TEST(SpmTrainerTest, MergesTheMostFrequentPairFirst) {
  const TokenizerData data = BuildSpmVocabulary("abab abab ab cd cd", 270);
  const std::vector<std::string> learned(data.tokens.begin() + kFixedTokens, data.tokens.end());
  // There are (11 - 0) / 3 = 3 characters, then merges: ab occurs 5 times, others at most twice.
  ASSERT_GE(learned.size(), 6u);
  EXPECT_EQ(learned[0], "ab");
  EXPECT_EQ(data.scores[kFixedTokens], -1);
  for (std::size_t i = kFixedTokens + 1; i < data.scores.size(); ++i) {
    EXPECT_LT(data.scores[i], data.scores[i - 1]);
  }
}

TEST(SpmTrainerTest, NoPieceCrossesAWordBorder) {
  const TokenizerData data = BuildSpmVocabulary(InventedText(1).Text(100000, 50), 2000);
  EXPECT_EQ(data.tokens.size(), 2000u);
  for (const std::string& token : data.tokens) {
    EXPECT_EQ(token.find("▁", 1), std::string::npos) << token;
  }
}

TEST(SpmTrainerTest, TheSameTextGivesTheSameVocabulary) {
  const std::string text = InventedText(2).Text(50000, 50);
  EXPECT_EQ(BuildSpmVocabulary(text, 1000).tokens, BuildSpmVocabulary(text, 1000).tokens);
}

TEST(SpmTrainerTest, ATokenizerReachesTheLearnedPieces) {
  const std::string text = InventedText(3).Text(200000, 50);
  const auto tokenizer = MakeTokenizer(BuildSpmVocabulary(text, 3000));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto tokens = (*tokenizer)->Encode(text);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*(*tokenizer)->Decode(*tokens), text);
  EXPECT_LT(tokens->size(), text.size() / 2);
  // Every merged piece consists of two pieces, so merging by score reaches most of them.
  int reached = 0;
  int learned = 0;
  for (std::int32_t token = kFixedTokens; token < (*tokenizer)->vocabulary_size(); ++token) {
    const auto again = (*tokenizer)->Encode((*tokenizer)->Piece(token), {.add_bos = AddToken::kNo});
    ++learned;
    reached += again->back() == token;
  }
  EXPECT_GT(reached, learned * 3 / 4) << learned;
}

}  // namespace
}  // namespace kvcache::spm_vocabulary
