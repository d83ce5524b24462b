#include "tokenizer/unigram/charsmap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace kvcache::charsmap_test {
namespace {

// One block: the root's children at 0x80, with "a" -> "X", "ab" -> "" and "b" -> "Y".
std::vector<std::uint32_t> Units() {
  std::vector<std::uint32_t> units(256);
  const auto unit = [](std::uint32_t at, std::uint32_t children, bool ends, std::uint8_t byte) {
    return (at ^ children) << 10 | (ends ? 0x100u : 0u) | byte;
  };
  units[0] = 0x80 << 10;
  units[0x80 ^ 'a'] = unit(0x80 ^ 'a', 0x10, true, 'a');
  units[0x10] = 0x80000000;  // "X"
  units[0x10 ^ 'b'] = unit(0x10 ^ 'b', 0x20, true, 'b');
  units[0x20] = 0x80000002;  // ""
  units[0x80 ^ 'b'] = unit(0x80 ^ 'b', 0x30, true, 'b');
  units[0x30] = 0x80000003;  // "Y"
  return units;
}

std::string Map(const std::vector<std::uint32_t>& units, const std::string& replacements) {
  const auto bytes = static_cast<std::uint32_t>(units.size() * 4);
  std::string map(4 + bytes, '\0');
  std::memcpy(map.data(), &bytes, 4);
  if (bytes > 0) std::memcpy(map.data() + 4, units.data(), bytes);
  return map + replacements;
}

const std::string kReplacements("X\0\0Y\0", 5);

TEST(CharsmapTest, FindsTheLongest) {
  const auto map = Charsmap::Make(Map(Units(), kReplacements));
  ASSERT_TRUE(map.ok()) << map.status().message();
  const struct {
    std::string text;
    std::size_t bytes;
    std::string replacement;
  } rows[] = {{"a", 1, "X"},  {"ac", 1, "X"}, {"ab", 2, ""}, {"abc", 2, ""},
              {"ba", 1, "Y"}, {"c", 0, ""},   {"", 0, ""},   {std::string("\0a", 2), 0, ""},
              {"\xFF", 0, ""}};
  for (const auto& row : rows) {
    EXPECT_EQ(map->Longest(row.text).bytes, row.bytes) << row.text;
    EXPECT_EQ(map->Longest(row.text).replacement, row.replacement) << row.text;
  }
  EXPECT_FALSE(map->KeepsBeforeAscii('a'));
  EXPECT_TRUE(map->KeepsBeforeAscii('c'));
}

TEST(CharsmapTest, EmptyMapReplacesNothing) {
  EXPECT_EQ(Charsmap().Longest("a").bytes, 0u);
  EXPECT_EQ(Charsmap::Make(Map({}, "x"))->Longest("a").bytes, 0u);
}

TEST(CharsmapTest, RejectsBrokenMaps) {
  auto outside = Units();
  outside[0x80 ^ 'a'] = 0x1000 << 10 | 'a';
  // A chain: "bb…b", 300 of them.
  std::vector<std::uint32_t> chain(310 * 256);
  chain[0] = 256 << 10;
  for (std::uint32_t place = 1; place <= 300; ++place) {
    const std::uint32_t child = place * 256 ^ 'b';
    chain[child] = (child ^ (place + 1) * 256) << 10 | 'b';
  }
  auto no_place = Units();
  no_place[0x30] = 0x80000005;
  auto cycle = Units();  // "b" leads to its own place
  cycle[0x80 ^ 'b'] = static_cast<std::uint32_t>('b') << 10 | 'b';
  const struct {
    std::string bytes;
    std::string message;
  } rows[] = {
      {"abc", "it has 3 bytes; must have 4 to 16777216"},
      {Map(Units(), ""), "its trie has 1024 bytes; must be a multiple of 4 below 1024"},
      {std::string("\2\0\0\0abcd", 8), "its trie has 2 bytes; must be a multiple of 4 below 4"},
      {std::string("\xFF\xFF\xFF\xFF"
                   "abcd",
                   8),
       "its trie has 4294967295 bytes; must be a multiple of 4 below 4"},
      {Map(std::vector<std::uint32_t>(8), "x"), "it refers to unit 255; must be below 8"},
      {Map(outside, kReplacements), "it refers to unit 4351; must be below 256"},
      {Map(cycle, kReplacements), "its trie has a cycle; must have none"},
      {Map(chain, kReplacements), "a string to replace is too long; at most 256 bytes are allowed"},
      {Map(no_place, kReplacements), "it refers to a replacement at byte 5; must be below 5"},
      {Map(Units(), std::string("X\0\0Y", 4)),
       "the replacement at byte 3 is too long or has no end; at most 256 bytes and a zero byte are "
       "allowed"},
      {Map(Units(), std::string("X\0\0", 3) + std::string(2000, 'y') + std::string(1, '\0')),
       "the replacement at byte 3 is too long or has no end; at most 256 bytes and a zero byte are "
       "allowed"},
  };
  for (const auto& row : rows) {
    const auto map = Charsmap::Make(row.bytes);
    ASSERT_FALSE(map.ok()) << row.message;
    EXPECT_EQ(map.status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(map.status().message(), "precompiled_charsmap: " + row.message);
  }
}

}  // namespace
}  // namespace kvcache::charsmap_test
