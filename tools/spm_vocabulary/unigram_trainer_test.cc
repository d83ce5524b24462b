#include "spm_vocabulary/unigram_trainer.h"

#include <gtest/gtest.h>

#include <string>

#include "spm_vocabulary/charsmap_builder.h"
#include "spm_vocabulary/invented_text.h"
#include "tokenizer/unigram/charsmap.h"

namespace kvcache::spm_vocabulary {
namespace {

TEST(UnigramTrainerTest, PiecesHaveFallingLogProbabilities) {
  const TokenizerData data = BuildUnigramVocabulary(InventedText(3).Text(60000, 80), 1000);
  ASSERT_GT(data.tokens.size(), 500u);
  ASSERT_LE(data.tokens.size(), 1000u);
  for (std::size_t i = 4; i < data.scores.size(); ++i) {
    EXPECT_LE(data.scores[i], data.scores[i - 1]);
    EXPECT_LT(data.scores[i], 0);
  }
}

TEST(UnigramTrainerTest, TokensCoverTheText) {
  const std::string text = InventedText(5).Sentence(0);
  const auto tokenizer = MakeTokenizer(BuildUnigramVocabulary(text + " " + text, 200));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(*(*tokenizer)->Decode(*(*tokenizer)->Encode(text)), text);
}

TEST(CharsmapBuilderTest, TheMapContainsTheReplacements) {
  const auto replacements = SampleReplacements();
  ASSERT_GT(replacements.size(), 200u);
  const auto map = Charsmap::Make(BuildCharsmap(replacements));
  ASSERT_TRUE(map.ok()) << map.status().message();
  for (const auto& [from, to] : replacements) {
    EXPECT_EQ(map->Longest(from).bytes, from.size()) << from;
    EXPECT_EQ(map->Longest(from).replacement, to) << from;
  }
  EXPECT_EQ(map->Longest("x").bytes, 0u);
}

}  // namespace
}  // namespace kvcache::spm_vocabulary
