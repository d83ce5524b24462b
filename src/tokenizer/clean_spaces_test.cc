#include "tokenizer/clean_spaces.h"

#include <gtest/gtest.h>

namespace kvcache::clean_spaces_test {
namespace {

TEST(CleanSpacesTest, RemovesOnlyTheListedSpaces) {
  const struct {
    const char* text;
    const char* expected;
  } rows[] = {
      {"", ""},
      {" ", " "},
      {"a b", "a b"},
      {"a .", "a."},
      {" .", "."},
      {"a  .", "a ."},
      {"what ? no ! , .", "what? no!,."},
      {"a . ;", "a. ;"},
      {"a ' b", "a'b"},
      {"a ' ' b", "a'' b"},
      {"a '", "a '"},
      {"it 's", "it's"},
      {"I 'm", "I'm"},
      {"we 're they 've", "we're they've"},
      {"he 'll he 'd isn 't", "he 'll he 'd isn 't"},
      {"'s", "'s"},
      {" 'r", " 'r"},
      {"a ' s", "a's"},  // by the second pass
      {"é .", "é."},
  };
  for (const auto& row : rows) {
    std::string text = row.text;
    CleanSpaces(&text);
    EXPECT_EQ(text, row.expected) << row.text;
  }
}

}  // namespace
}  // namespace kvcache::clean_spaces_test
