#include "tokenizer/text_index.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvcache::text_index_test {
namespace {

TEST(TextIndexTest, FindsEachTextOfAnyLength) {
  std::vector<std::string> texts;
  for (std::size_t length = 0; length < 70; ++length) texts.push_back(std::string(length, 'x'));
  const auto index = TextIndex::Make(texts);
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(index->size(), 70);
  for (std::int32_t i = 0; i < 70; ++i) {
    EXPECT_EQ(index->text(i), texts[static_cast<std::size_t>(i)]);
    EXPECT_EQ(index->Find(texts[static_cast<std::size_t>(i)]), i == 0 ? -1 : i);
  }
  EXPECT_EQ(index->Find(std::string(70, 'x')), -1);
  EXPECT_EQ(index->Find("y"), -1);
}

TEST(TextIndexTest, EmptyTextsMayRepeatAndAreNeverFound) {
  const auto index = TextIndex::Make({"", "a", ""});
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->Find(""), -1);
  EXPECT_EQ(index->Find("a"), 1);
}

TEST(TextIndexTest, EmptyIndexFindsNothing) {
  const auto index = TextIndex::Make({});
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->size(), 0);
  EXPECT_EQ(index->Find("a"), -1);
}

TEST(TextIndexTest, DuplicateTextIsAnErrorWithBothNumbers) {
  const auto index = TextIndex::Make({"a", "b", "a"});
  ASSERT_FALSE(index.ok());
  EXPECT_EQ(index.status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(index.status().message(), "text 'a' is both number 0 and number 2; must occur once");
}

TEST(TextIndexTest, AgreesWithAMapOnRandomBytes) {
  std::mt19937 random(3);
  std::set<std::string> set;
  while (set.size() < 20000) {
    std::string text;
    for (std::size_t n = 1 + random() % 40; n > 0; --n) text += static_cast<char>(random() % 3);
    set.insert(text);
  }
  const std::vector<std::string> texts(set.begin(), set.end());
  std::unordered_map<std::string, std::int32_t> map;
  for (std::size_t i = 0; i < texts.size(); ++i) map[texts[i]] = static_cast<std::int32_t>(i);
  const auto index = TextIndex::Make(texts);
  ASSERT_TRUE(index.ok());
  for (const std::string& text : texts) {
    for (const std::string& query : {text, text + '\0', text.substr(1)}) {
      const auto found = map.find(query);
      EXPECT_EQ(index->Find(query), found == map.end() ? -1 : found->second);
    }
  }
}

}  // namespace
}  // namespace kvcache::text_index_test
