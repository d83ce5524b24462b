#include "server/http/url_text.h"

#include <gtest/gtest.h>

namespace kvcache::server::url_text_test {
namespace {

TEST(UrlTextTest, EscapesAreDecoded) {
  EXPECT_EQ(PercentDecoded("a%2Fb%3a%20c"), "a/b: c");
  for (const char* const text : {"", "%", "%2", "%2x", "a%", "100%", "% 2"}) {
    EXPECT_EQ(PercentDecoded(text), text);
  }
}

TEST(UrlTextTest, FieldsOfQueries) {
  EXPECT_EQ(QueryField("limit=2&order=a%26b&x", "limit"), "2");
  EXPECT_EQ(QueryField("limit=2&order=a%26b&x", "order"), "a&b");
  EXPECT_EQ(QueryField("limit=2&order=a%26b&x", "x"), "");
  EXPECT_EQ(QueryField("limit=2&&order=", "order"), "");
  EXPECT_EQ(QueryField("limit=2", "lim"), std::nullopt);
  EXPECT_EQ(QueryField("", ""), std::nullopt);
}

}  // namespace
}  // namespace kvcache::server::url_text_test
