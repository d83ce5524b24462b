#include "base/strings.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvcache {
namespace {

TEST(StrCat, JoinsTextAndNumbers) {
  EXPECT_EQ(StrCat(), "");
  EXPECT_EQ(StrCat("a", std::string("b"), 'c', std::string_view("d")), "abcd");
  EXPECT_EQ(StrCat(1, ' ', -2, ' ', std::uint64_t{18446744073709551615u}),
            "1 -2 18446744073709551615");
  EXPECT_EQ(StrCat(0.1, ' ', 2.5f, ' ', 1e300), "0.1 2.5 1e+300");
  EXPECT_EQ(StrCat(std::uint8_t{65}), "65");
}

TEST(Quoted, EscapesAndShortens) {
  EXPECT_EQ(Quoted("x.y"), "'x.y'");
  EXPECT_EQ(Quoted(std::string_view("a\0\n\xff", 4)), "'a\\x00\\x0a\\xff'");
  EXPECT_EQ(Quoted("abcdefgh", 4), "'ab...gh'");
  EXPECT_EQ(Quoted("abcd", 4), "'abcd'");
}

}  // namespace
}  // namespace kvcache
