// Schemas that would take long, or much memory: they are compiled at once, or refused with the limit's name.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "grammar/grammar_testing.h"

namespace kvcache::bounds_test {
namespace {

using Json = nlohmann::ordered_json;

std::string ErrorOf(const Json& schema) {
  return GrammarOfSchema(schema.dump()).status().message();
}

void ExpectRefused(const Json& schema, const std::string& limit) {
  const std::string error = ErrorOf(schema);
  EXPECT_NE(error.find(limit), std::string::npos) << error.substr(0, 400);
}

void ExpectTexts(const Json& schema, const std::vector<std::string>& allowed,
                 const std::vector<std::string>& others) {
  const auto grammar = GrammarOfSchema(schema.dump());
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const std::string& text : allowed) EXPECT_TRUE(Matches(*grammar, text)) << text;
  for (const std::string& text : others) EXPECT_FALSE(Matches(*grammar, text)) << text;
}

Json Pattern(const std::string& pattern) {
  return {{"type", "string"}, {"pattern", pattern}};
}

std::string Times(std::size_t count, const std::string& text) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

// Returns UTF-8 of a code point above U+FFFF.
std::string Wide(std::uint32_t i) {
  const std::uint32_t point = 0x10000 + i;
  return {static_cast<char>(0xF0 | point >> 18), static_cast<char>(0x80 | (point >> 12 & 0x3F)),
          static_cast<char>(0x80 | (point >> 6 & 0x3F)), static_cast<char>(0x80 | (point & 0x3F))};
}

std::string Joined(std::uint32_t count, const std::string& before, const std::string& behind) {
  std::string all;
  for (std::uint32_t i = 0; i < count; ++i) all += before + Wide(i) + behind;
  return all;
}

TEST(SchemaBounds, RepetitionsOfNothing) {
  for (const char* nothing : {"(?:)", "(?:(?:)(?:))", "x{0}", "(?:a|b){0,0}", "((?:)*)+"}) {
    const std::string inner = std::string("(") + nothing + "){10000}";
    const std::string pattern = "^a((" + inner + "){10000}){10000}$";
    ExpectTexts(Pattern(pattern), {R"("a")"}, {R"("")", R"("ax")", R"("b")"});
  }
  // Counts that are multiplied stay in their range.
  ExpectRefused(Pattern("^" + Times(20, "(") + "a" + Times(20, "{10000})") + "$"),
                "more than 150000 characters");
  ExpectRefused(Pattern("^((?:|){10000}){10000}$"), "more than 150000 characters");
  // Within a repetition they take no time either.
  ExpectTexts(Pattern("^(a" + Times(100'000, "(?:)") + "){9999}$"),
              {"\"" + std::string(9999, 'a') + "\""}, {R"("a")"});
  ExpectRefused(Pattern("^(a" + Times(90'000, "(b{0}|c{0})") + "){10000}$"), "300000 parts");
}

TEST(SchemaBounds, PatternsOfManyCharacters) {
  const std::string all = Joined(60'000, "", "");
  EXPECT_EQ(ErrorOf(Pattern("^" + all + "$")), "");
  EXPECT_EQ(ErrorOf(Pattern("^" + Joined(20'000, "[^", "]") + "$")), "");
  EXPECT_EQ(ErrorOf({{"const", all}}), "");
  EXPECT_EQ(ErrorOf({{"type", "string"}, {"not", {{"enum", {all}}}}}), "");
  ExpectTexts(Pattern("^[" + all + "]$"), {"\"" + Wide(59'999) + "\"", "\"" + Wide(7) + "\""},
              {"\"" + Wide(60'000) + "\"", R"("a")"});
  ExpectTexts(Pattern("^" + Joined(300, "", "") + "$"), {"\"" + Joined(300, "", "") + "\""},
              {"\"" + Joined(299, "", "") + "\"", "\"" + Joined(301, "", "") + "\""});
  ExpectRefused(Pattern("^" + Joined(40'000, "[!-", "]") + "$"), "20000000 steps");
  ExpectRefused(Pattern("^[" + Times(20'000, "\\p{L}") + "]$"), "100000 ranges");
}

// Characters are told apart as ever.
TEST(SchemaBounds, ClassesOfCharacters) {
  ExpectTexts(Pattern("^[a-m][c-z][^d-f][^x]\\w$"), {R"("accaa")", R"("mzzw_")", R"("bdéé0")"},
              {R"("nccaa")", R"("abcaa")", R"("accxa")", R"("acdaa")", R"("accaé")"});
  ExpectTexts(Pattern("^[\\s\\S][^\\s\\S]?\\b!$"), {R"("a!")"}, {R"("-!")", R"("ab!")"});
}

TEST(SchemaBounds, SearchesAreBounded) {
  const std::string classes = "a|b|" + Joined(600, "[", "]|") + "c";
  const std::string many = "^(?:" + classes + ")*a(?:" + classes + "){14}$";
  ExpectRefused({{"pattern", many}, {"not", {{"pattern", many}}}}, "20000000 steps");
  ExpectRefused({{"type", "string"}, {"pattern", many}, {"not", {{"pattern", many}}}},
                "20000000 steps");
  ExpectRefused({{"type", "string"},
                 {"pattern", "^(?:" + Joined(20'000, "", "|") + ")+$"},
                 {"minLength", 5000}},
                "20000000 steps");
  Json items = Json::array();
  for (int i = 1; i < 8000; ++i) {
    items.push_back({{"type", "number"}, {"multipleOf", 9973}, {"minimum", i * 1e9 + 0.5}});
  }
  EXPECT_NE(ErrorOf({{"prefixItems", items}}), "");
  // What people write takes far less.
  ExpectTexts(Pattern(R"(^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@$!%*?&])[A-Za-z\d@$!%*?&]{8,20}$)"),
              {R"("aB3$aaaa")"}, {R"("aB3$aaa")", R"("ab3$aaaa")"});
}

TEST(SchemaBounds, PatternsTogether) {
  Json patterns = Json::object();
  Json all = Json::array();
  for (int i = 0; i < 400; ++i) {
    const std::string pattern = "(?:a{10000}){14}0" + std::to_string(i);
    patterns[pattern] = true;
    all.push_back({{"pattern", pattern}});
  }
  const std::string limit = "more than 200000 steps together with the other patterns";
  ExpectRefused({{"type", "object"}, {"patternProperties", patterns}}, limit);
  ExpectRefused({{"type", "string"}, {"allOf", all}}, limit);
  Json small = Json::object();
  for (int i = 0; i < 400; ++i) small["^" + std::to_string(i)] = true;
  ExpectRefused({{"type", "object"}, {"patternProperties", small}}, "more than 6 different");
}

TEST(SchemaBounds, NamesAndConstantsBesidePatterns) {
  Json names = Json::object();
  Json texts = Json::array();
  for (int i = 0; i < 3000; ++i) {
    names["aaaaaaaaaaaaaaaaaaaa" + std::to_string(i)] = true;
    texts.push_back(std::string(50, 'a') + std::to_string(i));
  }
  const std::string pattern = "^(?:a?b?){2000}x$";
  ExpectRefused(
      {{"type", "object"}, {"patternProperties", {{pattern, true}}}, {"properties", names}},
      "more than 10000000 steps");
  ExpectRefused({{"enum", texts}, {"pattern", pattern}}, "more than 10000000 steps");
}

TEST(SchemaBounds, ConstantsThatAreCompared) {
  Json lists = Json::array();
  Json objects = Json::array();
  Json numbers = Json::array();
  Json members = Json::object();
  for (int i = 0; i < 12'000; ++i) {
    lists.push_back({i});
    objects.push_back({{"a", i}});
    numbers.push_back(i);
    members["a" + std::to_string(i)] = i;
  }
  const std::string limit = "more than 10000000 steps";
  ExpectRefused({{"const", lists}, {"uniqueItems", true}}, limit);
  ExpectRefused({{"const", objects}, {"uniqueItems", true}}, limit);
  ExpectRefused({{"const", numbers}, {"uniqueItems", true}}, limit);
  Json any = members;
  for (const auto& item : any.items()) item.value() = true;
  ExpectRefused({{"const", members}, {"properties", any}}, limit);
  Json keywords = {{"enum", numbers}};
  for (int i = 0; i < 5000; ++i) {
    keywords.get_ref<Json::object_t&>().push_back({"x" + std::to_string(i), 1});
  }
  ExpectRefused(keywords, limit);
  Json some = Json::array();
  for (int i = 0; i < 300; ++i) some.push_back({{"a", i}, {"b", {i}}});
  EXPECT_EQ(ErrorOf({{"const", some}, {"uniqueItems", true}}), "");
  some.push_back({{"b", {7}}, {"a", 7.0}});
  ExpectRefused({{"const", some}, {"uniqueItems", true}}, "allows no value");
}

TEST(SchemaBounds, LargeSchemasThatManyName) {
  Json large = {{"type", "integer"}};
  for (int i = 0; i < 20'000; ++i) {
    large.get_ref<Json::object_t&>().push_back({"x" + std::to_string(i), 1});
  }
  Json any = Json::array();
  for (int i = 0; i < 20'000; ++i) any.push_back({{"minimum", i}, {"$ref", "#/$defs/a"}});
  ExpectRefused({{"$defs", {{"a", large}}}, {"anyOf", any}}, "makes the grammar too large");
  Json all = Json::array();
  for (int i = 0; i < 50'000; ++i) all.push_back({{"minimum", i}});
  ExpectRefused({{"allOf", all}}, "makes the grammar too large");
  Json one_of = Json::array();
  for (int i = 0; i < 1000; ++i) {
    Json list = Json::array();
    for (int j = 0; j < 400; ++j) list.push_back(0);
    list.push_back(i);
    one_of.push_back({{"const", list}});
  }
  ExpectRefused({{"oneOf", one_of}}, "too many to compare");
}

}  // namespace
}  // namespace kvcache::bounds_test
