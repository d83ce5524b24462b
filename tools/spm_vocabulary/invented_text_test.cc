#include "spm_vocabulary/invented_text.h"

#include <gtest/gtest.h>

#include <string>

#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache::spm_vocabulary {
namespace {

TEST(InventedTextTest, IsValidAndHasEveryScript) {
  InventedText source(1);
  const std::string text = source.Text(500000, 20);
  EXPECT_TRUE(IsValidUtf8(text));
  for (std::size_t i = 0; i < Scripts().size(); ++i) {
    const std::string& word = source.Word(i);
    EXPECT_TRUE(IsValidUtf8(word)) << Scripts()[i].name;
    std::string first;
    AppendUtf8(Scripts()[i].first, &first);
    EXPECT_NE(text.find(first), std::string::npos) << Scripts()[i].name;
  }
}

TEST(InventedTextTest, TheSeedDecides) {
  EXPECT_EQ(InventedText(1).Text(1000, 50), InventedText(1).Text(1000, 50));
  EXPECT_NE(InventedText(1).Text(1000, 50), InventedText(2).Text(1000, 50));
}

}  // namespace
}  // namespace kvcache::spm_vocabulary
