#include "json/closable_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kObject =
    R"({"s": "a \"b\" \u00e9 \\u }]", "n": [-1.5e3, true, null], "o": {"k": {}, "": []}, "last": 12})";

TEST(ClosableJson, PassesAllOfAnObject) {
  for (std::size_t size = 1; size <= kObject.size(); ++size) {
    ClosableJson json;
    std::string out;
    for (std::size_t i = 0; i < kObject.size(); i += size)
      out += json.Take(kObject.substr(i, size));
    EXPECT_EQ(out, kObject) << size;
    EXPECT_EQ(json.Close(), "");
  }
}

TEST(ClosableJson, ClosesAnObjectAfterEachByte) {
  for (std::size_t size = 1; size < kObject.size(); ++size) {
    ClosableJson json;
    std::string out = json.Take(kObject.substr(0, size));
    EXPECT_TRUE(kObject.starts_with(out));
    out += json.Close();
    EXPECT_TRUE(Json::accept(out)) << out;
  }
}

TEST(ClosableJson, DropsWhatIsNotWhole) {
  const std::pair<const char*, const char*> cases[] = {{R"({"a": 1, "key)", R"({"a": 1)"},
                                                       {R"({"a": 1, "key": tr)", R"({"a": 1)"},
                                                       {R"({"a": "text\)", R"({"a": "text)"},
                                                       {R"({"a": "\u00)", R"({"a": ")"},
                                                       {R"({"a": 12)", "{"},
                                                       {R"({"a": 12,)", R"({"a": 12)"},
                                                       {R"({"a": ["x")", R"({"a": ["x")"},
                                                       {"", ""}};
  for (const auto& [written, passed] : cases) {
    EXPECT_EQ(ClosableJson().Take(written), passed);
  }
}

TEST(ClosableJson, BeginsAnewBehindTheEnd) {
  ClosableJson json;
  EXPECT_EQ(json.Take(R"({"a": "x)"), R"({"a": "x)");
  EXPECT_EQ(json.Close(), "\"}");
  EXPECT_EQ(json.Take("{}"), "{}");
  EXPECT_EQ(json.Close(), "");
}

}  // namespace
}  // namespace kvcache
