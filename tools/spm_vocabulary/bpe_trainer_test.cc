#include "spm_vocabulary/bpe_trainer.h"

#include <gtest/gtest.h>

#include <string>

#include "spm_vocabulary/invented_text.h"

namespace kvcache::spm_vocabulary {
namespace {

TEST(BpeTrainerTest, MergesTheMostFrequentPairOfAWord) {
  const TokenizerData data = BuildBpeVocabulary("abc abc abd xy", 300, "gpt-2", {"<s>"});
  ASSERT_GE(data.merges.size(), 2u);
  EXPECT_EQ(data.merges[0], "a b");
  EXPECT_EQ(data.tokens[256], "ab");
  EXPECT_EQ(data.tokens.back(), "<s>");
  EXPECT_EQ(data.types.back(), static_cast<std::int32_t>(TokenKind::kControl));
  for (const std::string& merge : data.merges) EXPECT_EQ(merge.find("Ġ", 3), std::string::npos);
}

TEST(BpeTrainerTest, EncodesTheTextInFewerTokensThanBytes) {
  const std::string text = InventedText(3).Text(60000, 50);
  for (const char* pre : {"llama-bpe", "qwen2", "gpt-4o"}) {
    const auto tokenizer = MakeTokenizer(BuildBpeVocabulary(text, 1500, pre, {}));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    const auto tokens = *(*tokenizer)->Encode(text);
    EXPECT_EQ(*(*tokenizer)->Decode(tokens), text);
    EXPECT_LT(tokens.size(), text.size() / 2);
  }
}

TEST(BpeTrainerTest, TheSameTextGivesTheSameVocabulary) {
  const std::string text = InventedText(4).Text(20000, 50);
  EXPECT_EQ(BuildBpeVocabulary(text, 500, "qwen2", {}).merges,
            BuildBpeVocabulary(text, 500, "qwen2", {}).merges);
}

}  // namespace
}  // namespace kvcache::spm_vocabulary
