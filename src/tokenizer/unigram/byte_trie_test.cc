#include "tokenizer/unigram/byte_trie.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace kvcache::byte_trie_test {
namespace {

using Found = std::vector<std::pair<std::int32_t, std::size_t>>;

Found Prefixes(const ByteTrie& trie, std::string_view text) {
  Found found;
  trie.ForEachPrefix(text,
                     [&](std::int32_t token, std::size_t n) { found.emplace_back(token, n); });
  return found;
}

TEST(ByteTrieTest, VisitsTheShortestFirst) {
  const ByteTrie trie({{"a", 3}, {"abc", 0}, {"b", 7}, {std::string(1, '\0'), 5}, {"\xFF", 6}});
  EXPECT_EQ(Prefixes(trie, "abcd"), (Found{{3, 1}, {0, 3}}));
  EXPECT_EQ(Prefixes(trie, "ab"), (Found{{3, 1}}));
  EXPECT_EQ(Prefixes(trie, "c"), Found{});
  EXPECT_EQ(Prefixes(trie, ""), Found{});
  EXPECT_EQ(Prefixes(trie, std::string("\0\0", 2)), (Found{{5, 1}}));
  EXPECT_EQ(Prefixes(trie, "\xFF\xFF"), (Found{{6, 1}}));
}

TEST(ByteTrieTest, EmptyTrieFindsNothing) {
  EXPECT_EQ(Prefixes(ByteTrie(), "abc"), Found{});
  const std::vector<std::pair<std::string, std::int32_t>> none;
  EXPECT_EQ(Prefixes(ByteTrie(none), "abc"), Found{});
}

// Alphabets of 2 to 256 bytes give nodes with few and with all children, so that blocks fill up.
TEST(ByteTrieTest, MatchesAMap) {
  std::mt19937_64 random(5);
  for (const unsigned alphabet : {2u, 10u, 256u}) {
    std::map<std::string, std::int32_t> texts;
    for (int i = 0; i < 20000; ++i) {
      std::string text;
      for (std::uint64_t n = 1 + random() % 8; n > 0; --n) {
        text.push_back(static_cast<char>(random() % alphabet));
      }
      texts.emplace(text, static_cast<std::int32_t>(texts.size()));
    }
    const ByteTrie trie(
        std::vector<std::pair<std::string, std::int32_t>>(texts.begin(), texts.end()));
    for (int i = 0; i < 20000; ++i) {
      std::string text;
      for (std::uint64_t n = random() % 12; n > 0; --n) {
        text.push_back(static_cast<char>(random() % alphabet));
      }
      Found expected;
      for (std::size_t n = 1; n <= text.size(); ++n) {
        const auto at = texts.find(text.substr(0, n));
        if (at != texts.end()) expected.emplace_back(at->second, n);
      }
      ASSERT_EQ(Prefixes(trie, text), expected);
    }
  }
}

}  // namespace
}  // namespace kvcache::byte_trie_test
