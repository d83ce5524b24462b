#include "tokenizer/unicode/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace kvcache::utf8_stream_test {
namespace {

// Streams the bytes in pieces that end at each of `cuts`.
std::string Stream(std::string_view bytes, const std::vector<std::size_t>& cuts) {
  Utf8Stream stream;
  std::string out;
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    stream.Push(bytes.substr(begin, cut - begin), &out);
    EXPECT_TRUE(IsValidUtf8(out)) << "after " << cut << " bytes";
    begin = cut;
  }
  stream.Push(bytes.substr(begin), &out);
  stream.Flush(&out);
  EXPECT_EQ(stream.pending_bytes(), 0);
  return out;
}

struct Case {
  std::string name;
  std::string bytes;
  std::string text;
};

#define FFFD "\xEF\xBF\xBD"

// The broken cases are those of the Unicode standard, section 3.9, and variations of them.
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"empty", "", ""},
      {"ascii", "one two", "one two"},
      {"two bytes", "h\xC3\xA9", "hé"},
      {"three bytes", "\xE2\x96\x81x", "▁x"},
      {"four bytes", "\xF0\x9F\x98\x80!", "😀!"},
      {"emoji family", "👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"},
      {"last code point", "\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
      {"NUL", std::string("a\0b", 3), std::string("a\0b", 3)},
      {"lone continuation", "\x80", FFFD},
      {"lone lead", "\xC3", FFFD},
      {"lead before ascii",
       "\xC3"
       "a",
       FFFD "a"},
      {"lead before lead", "\xC3\xC3\xA9", FFFD "é"},
      {"never a lead", "\xC0\xC1\xF5\xFF", FFFD FFFD FFFD FFFD},
      {"overlong slash", "\xC0\xAF", FFFD FFFD},
      {"overlong three", "\xE0\x80\xAF", FFFD FFFD FFFD},
      {"overlong four", "\xF0\x80\x80\xAF", FFFD FFFD FFFD FFFD},
      {"surrogate", "\xED\xA0\x80", FFFD FFFD FFFD},
      {"before the surrogates", "\xED\x9F\xBF", "\xED\x9F\xBF"},
      {"past the end", "\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD},
      {"cut after two of three", "\xE2\x96", FFFD},
      {"cut after three of four", "\xF0\x9F\x98", FFFD},
      {"cut, then ascii",
       "\xF0\x9F\x98"
       "a",
       FFFD "a"},
      {"standard's example", "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
       "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d"},
      {"standard's truncated", "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", FFFD FFFD FFFD FFFD "A"},
  };
  return cases;
}

TEST(Utf8StreamTest, EverySplitGivesTheSameText) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(Stream(c.bytes, {}), c.text);
    for (std::size_t i = 0; i <= c.bytes.size(); ++i) {
      for (std::size_t j = i; j <= c.bytes.size(); ++j) EXPECT_EQ(Stream(c.bytes, {i, j}), c.text);
    }
    std::vector<std::size_t> bytes;
    for (std::size_t i = 0; i < c.bytes.size(); ++i) bytes.push_back(i);
    EXPECT_EQ(Stream(c.bytes, bytes), c.text);
  }
}

TEST(Utf8StreamTest, ValidTextNeedsNoReplacements) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(IsValidUtf8(c.bytes), c.bytes == c.text);
  }
}

TEST(Utf8StreamTest, ReturnsACompleteCharacterAtOnce) {
  Utf8Stream stream;
  std::string out;
  const std::string smile = "\xF0\x9F\x98\x80";
  for (std::size_t i = 0; i < 3; ++i) {
    stream.Push(smile.substr(i, 1), &out);
    EXPECT_EQ(out, "");
    EXPECT_EQ(stream.pending_bytes(), static_cast<int>(i) + 1);
  }
  stream.Push(smile.substr(3), &out);
  EXPECT_EQ(out, smile);
  EXPECT_EQ(stream.pending_bytes(), 0);
}

TEST(Utf8StreamTest, ReplacesAsSoonAsACharacterIsBroken) {
  Utf8Stream stream;
  std::string out;
  stream.Push("\xE0", &out);
  EXPECT_EQ(out, "");
  stream.Push("\x80", &out);  // cannot follow E0: overlong
  EXPECT_EQ(out, FFFD FFFD);
  EXPECT_EQ(stream.pending_bytes(), 0);
}

TEST(Utf8StreamTest, RandomBytesInRandomPieces) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::size_t n = random() % 24; n > 0; --n) {
      constexpr std::string_view kLikely = "a\x80\xBF\xC3\xE2\x96\x81\xED\xA0\xF0\x9F\x90\xF4\x8F";
      bytes += random() % 4 == 0 ? static_cast<char>(random()) : kLikely[random() % kLikely.size()];
    }
    std::vector<std::size_t> cuts;
    for (std::size_t i = 1; i < bytes.size(); ++i) {
      if (random() % 3 == 0) cuts.push_back(i);
    }
    const std::string whole = Stream(bytes, {});
    EXPECT_EQ(Stream(bytes, cuts), whole);
    EXPECT_TRUE(IsValidUtf8(whole));
    EXPECT_EQ(whole == bytes, IsValidUtf8(bytes));
  }
}

TEST(Utf8StreamTest, RepairReplacesEachByteOutsideACharacter) {
  const struct {
    std::string text;
    std::string expected;
  } rows[] = {
      {"", ""},
      {"plain é中😀", "plain é中😀"},
      {"\xE2\x82", "\uFFFD\uFFFD"},
      {"a\xE2\x82z", "a\uFFFD\uFFFDz"},
      {"\xC3", "\uFFFD"},
      {"\x80\xBF", "\uFFFD\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},                      // overlong
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // past the end
      {"12345678\xFF"
       "12345678é\xFE",
       "12345678\uFFFD"
       "12345678é\uFFFD"},
  };
  for (const auto& row : rows) {
    std::string repaired = "old";
    EXPECT_EQ(RepairUtf8(row.text, &repaired), row.expected);
  }
}

}  // namespace
}  // namespace kvcache::utf8_stream_test
