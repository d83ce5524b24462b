#include "base/longest_beginning.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcache::longest_beginning_test {
namespace {

// Returns the beginning of a text whose bytes are `tokens_of` tokens, and counts the calls.
template <typename TokensOf>
std::string_view Find(std::string_view text, std::size_t max, int* calls, TokensOf tokens_of) {
  const auto count = [&](std::string_view beginning) {
    ++*calls;
    EXPECT_EQ(beginning, text.substr(0, beginning.size()));
    return Result<std::size_t>(tokens_of(beginning.size()));
  };
  return *LongestBeginning(text, tokens_of(0), tokens_of(text.size()), max, count);
}

TEST(LongestBeginning, FillsTheRoomWithFewEncodings) {
  const std::string text(1 << 20, 'a');
  for (const std::size_t around : {0, 100, 7000, 8150, 8190}) {
    int calls = 0;
    const auto tokens_of = [&](std::size_t bytes) { return around + bytes / 4; };
    const std::size_t tokens = tokens_of(Find(text, 8192, &calls, tokens_of).size());
    EXPECT_LE(tokens, 8192u);
    EXPECT_GE(tokens, 8192u - 128u);
    EXPECT_LE(calls, 4) << around;
  }
}

TEST(LongestBeginning, EndsOnTextsOfUnequalTokens) {
  const std::string text(1 << 20, 'a');
  int calls = 0;
  // A dense beginning, and blanks that are one token.
  const auto tokens_of = [](std::size_t bytes) { return std::min<std::size_t>(bytes, 5000); };
  EXPECT_EQ(tokens_of(Find(text, 10, &calls, tokens_of).size()), 10u);
  EXPECT_LE(calls, 20);
}

TEST(LongestBeginning, DividesNoCharacter) {
  const std::string text = "\u20ac\u20ac\u20ac\u20ac";  // three bytes each
  int calls = 0;
  const auto tokens_of = [](std::size_t bytes) { return bytes; };
  EXPECT_EQ(Find(text, 8, &calls, tokens_of), "\u20ac\u20ac");
  EXPECT_EQ(Find(text, 2, &calls, tokens_of), "");
  EXPECT_EQ(Find(text, 9, &calls, tokens_of), "\u20ac\u20ac\u20ac");
}

TEST(LongestBeginning, ReturnsErrors) {
  const auto fails = [](std::string_view /*beginning*/) {
    return Result<std::size_t>(Status(StatusCode::kInternal, "broken"));
  };
  EXPECT_EQ(LongestBeginning("abcd", 0, 4, 2, fails).status().message(), "broken");
}

}  // namespace
}  // namespace kvcache::longest_beginning_test
