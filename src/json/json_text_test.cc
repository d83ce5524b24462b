#include "json/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/strings.h"

namespace kvcache::json_text_test {
namespace {

using ::testing::HasSubstr;

std::string Nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

TEST(JsonText, NestingIsBounded) {
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonNesting)).ok());
  for (const int depth : {kMaxJsonNesting + 1, 1'000'000}) {
    const auto deep = ParseJson(Nested(depth));
    EXPECT_EQ(deep.status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(deep.status().message(), "JSON is nested deeper than 100 levels");
  }
  EXPECT_TRUE(ParseJson('"' + std::string(1000, '[') + '"').ok()) << "brackets in a string";
  EXPECT_TRUE(ParseJson("\"\\\"" + std::string(1000, '{') + '"').ok()) << "after a quote in it";
}

TEST(JsonText, TheNumberOfValuesIsBounded) {
  const auto list = [](std::size_t values) {
    std::string text = "[0";
    for (std::size_t i = 1; i < values; ++i) text += ",0";
    return text + "]";
  };
  EXPECT_TRUE(ParseJson(list(kMaxJsonValues - 1)).ok());
  const auto many = ParseJson(list(kMaxJsonValues));
  EXPECT_EQ(many.status().message(), "JSON has more than 1,048,576 values");
  EXPECT_TRUE(ParseJson('"' + std::string(2 * kMaxJsonValues, ',') + '"').ok());
}

// Objects find their keys by linear search: reading n of them takes n * n / 2 comparisons.
TEST(JsonText, TheKeysOfAnObjectAreBounded) {
  const auto object = [](std::size_t keys) {
    std::string text = "{";
    for (std::size_t i = 0; i < keys; ++i) text += StrCat(i == 0 ? "" : ",", '"', i, "\": [1, 2]");
    return text + "}";
  };
  EXPECT_TRUE(ParseJson(object(kMaxJsonKeys)).ok());
  for (const std::string& many : {object(kMaxJsonKeys + 1), "[1," + object(200'000) + "]"}) {
    const auto parsed = ParseJson(many);
    EXPECT_EQ(parsed.status().code(), StatusCode::kUnsupported);
    EXPECT_EQ(parsed.status().message(), "JSON has an object with more than 1,024 keys");
  }
  std::string objects = "[";
  for (int i = 0; i < 10; ++i) objects += (i == 0 ? "" : ",") + object(kMaxJsonKeys - 1);
  EXPECT_TRUE(ParseJson(objects + "]").ok()) << "each object has keys of its own";
}

TEST(JsonText, ErrorsAreShort) {
  for (const std::string& token :
       {'"' + std::string(3'000'000, 'x'), std::string(3'000'000, '1') + "x",
        '"' + std::string(1000, 'x') + "\xff"}) {
    const auto wrong = ParseJson("[" + token);
    EXPECT_LE(wrong.status().message().size(), 250U);
    EXPECT_THAT(wrong.status().message(), HasSubstr("not JSON: "));
  }
}

TEST(JsonText, ErrorsSayWhere) {
  const auto wrong = ParseJson("{\"a\":\n 1,}");
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), HasSubstr("not JSON: parse error at line 2, column"));
  for (const char* const text : {"", "1e999", "\"\xff\"", "\"\\ud800\"", "[1] 2", "nul", "\"\\"}) {
    EXPECT_THAT(ParseJson(text).status().message(), HasSubstr("not JSON")) << text;
  }
}

}  // namespace
}  // namespace kvcache::json_text_test
