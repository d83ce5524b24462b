#include "engine/request/stop_strings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcache::stop_strings_test {
namespace {

struct Case {
  std::vector<std::string> stops;
  std::string text;
  std::string kept;
  bool stopped;
};

const Case kCases[] = {
    {{}, "anything at all", "anything at all", false},
    {{"END"}, "one END two", "one ", true},
    {{"END"}, "one EN", "one EN", false},
    {{"END"}, "END", "", true},
    {{"aab"}, "aaaab!", "aa", true},
    {{"\n\n", "User:"}, "text\nUser: more", "text\n", true},
    {{"abc", "bc"}, "xabcx", "x", true},
    {{"bcd", "abcde"}, "xabcdx", "xa", true},
    {{"é"}, "caf\xc3\xa9", "caf", true},
};

TEST(StopStrings, SameTextHoweverItIsCut) {
  for (const Case& c : kCases) {
    for (std::size_t step = 1; step <= c.text.size(); ++step) {
      StopStrings stops(c.stops);
      std::string out;
      for (std::size_t at = 0; at < c.text.size(); at += step) {
        out += stops.Push(std::string_view(c.text).substr(at, step));
      }
      if (!stops.stopped()) out += stops.Flush();
      EXPECT_EQ(stops.stopped(), c.stopped) << c.text << " by " << step;
      EXPECT_EQ(out, c.kept) << c.text << " by " << step;
    }
  }
}

TEST(StopStrings, NothingIsHeldThatCannotBeginAStop) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_EQ(stops.Push("xE"), "x");
  EXPECT_EQ(stops.Push("Nx"), "ENx");
}

TEST(StopStrings, NothingComesAfterTheStop) {
  StopStrings stops({"."});
  EXPECT_EQ(stops.Push("a.b"), "a");
  EXPECT_EQ(stops.Push("c"), "");
  EXPECT_EQ(stops.Flush(), "");
}

}  // namespace
}  // namespace kvcache::stop_strings_test
