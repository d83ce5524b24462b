#include "grammar/schema/json_schema.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "grammar/grammar_automaton.h"
#include "grammar/grammar_testing.h"
#include "grammar/token_mask.h"

namespace kvcache::json_schema_test {
namespace {

using Json = nlohmann::ordered_json;

bool Matches(const std::string& schema, const std::string& text) {
  const auto grammar = GrammarOfSchema(schema);
  EXPECT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  return Matches(*grammar, text);
}

void ExpectTexts(const std::string& schema, const std::vector<std::string>& allowed,
                 const std::vector<std::string>& others) {
  for (const std::string& text : allowed)
    EXPECT_TRUE(Matches(schema, text)) << schema << " " << text;
  for (const std::string& text : others)
    EXPECT_FALSE(Matches(schema, text)) << schema << " " << text;
}

TEST(JsonSchema, Types) {
  ExpectTexts(R"({"type": "integer"})", {"0", "-1", "120"}, {"01", "-0", "1.5", "", "\"1\""});
  ExpectTexts(R"({"type": "number"})", {"0", "-0.5", "1e5", "2.25E-3"}, {".5", "1.", "1e", "+1"});
  ExpectTexts(R"({"type": ["null", "boolean"]})", {"null", "true", "false"}, {"0", "nul"});
  ExpectTexts(R"({"type": "string"})",
              {R"("")", R"("a b")", R"("\n\"\\")", R"("é\u00e9")", R"("\ud83d\ude00")"},
              {R"("\x")", "\"a\nb\"", R"("\ud83d")", "\"\xff\"", "\"a", R"("\ude00")"});
  ExpectTexts("true", {"{}", "[1, {\"a\":null}]", "\"x\""}, {"{", "[1,]", "{\"a\"}"});
  ExpectTexts(R"({"type": "integer", "nullable": true})", {"null", "3"}, {"true"});
}

TEST(JsonSchema, Objects) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"},
      "b": {"type": "boolean"}, "c": {"type": "null"}}, "required": ["b"],
      "additionalProperties": false})";
  ExpectTexts(schema,
              {R"({"b":true})", R"({"a": 1, "b":false})", R"({"a":1,"b":true,"c":null})",
               R"({"b":true, "c":null})"},
              {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,})", R"({,"b":true})",
               R"({"b":1})", R"({"b":true,"d":1})"});
  ExpectTexts(
      R"({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2})",
      {"{}", R"({"x":1})", R"({"x":1, "y":2})"}, {R"({"x":true})", R"({"x":1,"y":2,"z":3})"});
  ExpectTexts(R"({"required": ["k"]})", {R"({"k":[]})", "1"}, {"{}"});
  ExpectTexts(R"({"type": "object", "required": ["k"]})", {R"({"k":[]})", R"({"k":1,"a":2})"},
              {"{}", "1", R"({"a":2})"});
}

TEST(JsonSchema, Arrays) {
  ExpectTexts(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
              {"[1]", "[1, 2,3]"}, {"[]", "[1,2,3,4]", "[true]", "[1,]"});
  ExpectTexts(R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1,2,3,4,5]"},
              {"[,1]"});
  ExpectTexts(R"({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": false,
                  "minItems": 1})",
              {"[null]", "[null,true]"}, {"[]", "[true]", "[null,true,1]"});
  ExpectTexts(R"({"prefixItems": [{"type": "null"}], "items": {"type": "integer"}})",
              {"[]", "[null]", "[null,1,2]"}, {"[1]", "[null,null]"});
  ExpectTexts(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
}

TEST(JsonSchema, Numbers) {
  for (const auto& [min, max] : {std::pair{-12, 105}, {0, 9}, {7, 7}, {-30, -4}, {99, 1001}}) {
    const std::string schema =
        Json({{"type", "integer"}, {"minimum", min}, {"maximum", max}}).dump();
    auto grammar = GrammarOfSchema(schema);
    ASSERT_TRUE(grammar.ok());
    GrammarAutomaton automaton(std::move(*grammar));
    for (int value = -1100; value <= 1100; ++value) {
      GrammarAutomaton::State state = automaton.start();
      for (const char c : std::to_string(value)) {
        state = automaton.Next(state, static_cast<unsigned char>(c));
      }
      const bool matches = state != GrammarAutomaton::kDead && automaton.Accepts(state);
      EXPECT_EQ(matches, value >= min && value <= max) << schema << " " << value;
    }
  }
  ExpectTexts(R"({"type": "integer", "exclusiveMinimum": 0})", {"1", "99"}, {"0", "-1"});
  ExpectTexts(R"({"type": "number", "minimum": 0, "maximum": 1})",
              {"0", "1", "0.25", "1.0", "5e-1"}, {"1.5", "-0.5", "1.01", "2e0"});
  ExpectTexts(R"({"type": "number", "minimum": -2, "exclusiveMaximum": 2})",
              {"-2", "-1.75", "-0.5", "1.5", "0.1"}, {"2", "-2.5"});
}

// Numbers with fractions and multiples are those that arithmetic says, as far as each has a text.
TEST(JsonSchema, DecimalsAndMultiples) {
  for (const auto& [min, max, multiple, places] :
       std::vector<std::tuple<double, double, double, int>>{{-12, 105, 5, 0},
                                                            {1, 99, 7, 0},
                                                            {-3, -1, 2, 0},
                                                            {0, 1000, 100, 0},
                                                            {-2, 2, 0.25, 2},
                                                            {0.5, 1.25, 0, 2},
                                                            {-0.75, 0.1, 0, 2},
                                                            {0.1, 0.3, 0.1, 1},
                                                            {-1.5, 3.5, 0.5, 1}}) {
    Json schema = {
        {"type", places == 0 ? "integer" : "number"}, {"minimum", min}, {"maximum", max}};
    if (multiple != 0) schema["multipleOf"] = multiple;
    auto grammar = GrammarOfSchema(schema.dump());
    ASSERT_TRUE(grammar.ok()) << schema << grammar.status().message();
    GrammarAutomaton automaton(std::move(*grammar));
    const long scale = places == 0 ? 1 : places == 1 ? 10 : 100;
    for (long units = -130 * scale; units <= 130 * scale; ++units) {
      std::string text = std::to_string(std::labs(units) / scale);
      if (places > 0) {
        const std::string rest = std::to_string(scale + std::labs(units) % scale);
        text += "." + rest.substr(1);
      }
      if (units < 0) text.insert(0, "-");
      GrammarAutomaton::State state = automaton.start();
      for (const char c : text) state = automaton.Next(state, static_cast<unsigned char>(c));
      const bool matches = state != GrammarAutomaton::kDead && automaton.Accepts(state);
      const long step = std::lround(multiple * static_cast<double>(scale));
      const bool expected = units >= std::lround(min * static_cast<double>(scale)) &&
                            units <= std::lround(max * static_cast<double>(scale)) &&
                            (step == 0 || units % step == 0);
      EXPECT_EQ(matches, expected) << schema << " " << text;
    }
  }
  ExpectTexts(R"({"type": "number", "multipleOf": 0.25})", {"0", "-7", "1.5", "-1.75", "0.50"},
              {"0.3", "1.125", "-0", "-0.0", "01"});
  ExpectTexts(R"({"type": "number", "minimum": 0.5, "maximum": 1.25})",
              {"0.5", "1", "1.249999", "1.25", "0.500"},
              {"0.49", "1.26", "2", "0", "-1", "1.250001"});
  ExpectTexts(R"({"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.75})",
              {"0.500001", "0.75", "0.7"}, {"0.5", "0.50", "0.76"});
  ExpectTexts(R"({"type": "number", "minimum": 0.5, "exclusiveMinimum": 0.5, "maximum": 3})",
              {"0.51", "3"}, {"0.5", "3.1"});
  ExpectTexts(R"({"type": "integer", "minimum": 10, "multipleOf": 4})", {"12", "1000", "12.0"},
              {"10", "8", "0", "-4", "12.4"});
  ExpectTexts(R"({"type": "number", "multipleOf": 10})", {"0", "-20", "500", "1e1", "10.0"},
              {"5", "1e0", "10.1"});
}

// Schemas that hold together are one, recursive ones too.
TEST(JsonSchema, AllOf) {
  ExpectTexts(
      R"({"allOf": [{"type": "number"}, {"minimum": 1}, {"type": "integer", "maximum": 3}]})",
      {"1", "2", "3"}, {"0", "4", "1.5"});
  const std::string object =
      R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
      "allOf": [{"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
                {"properties": {"a": {"minimum": 5, "maximum": 6}}}]})";
  ExpectTexts(object, {R"({"a":5,"b":true})", R"({"a": 6, "b":false})"},
              {R"({"a":5})", R"({"b":true})", R"({"a":7,"b":true})", R"({"a":5,"b":1})"});
  ExpectTexts(R"({"allOf": [{"properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                             "additionalProperties": false},
                            {"properties": {"b": {}, "c": {}}, "required": ["b"]}]})",
              {R"({"b":null})", R"({"a":null,"b":null})"},
              {R"({"b":null,"c":1})", "{}", R"({"b":1})"});
  ExpectTexts(R"({"allOf": [{"enum": ["a", "b", 1]}, {"enum": ["b", 1, 2]}, {"type": "string"}]})",
              {R"("b")"}, {R"("a")", "1", "2"});
  ExpectTexts(
      R"({"allOf": [{"minLength": 2}, {"type": "string", "maxLength": 3}, {"minLength": 1}]})",
      {R"("ab")", R"("abc")"}, {R"("a")", R"("abcd")", "1"});
  ExpectTexts(
      R"({"allOf": [{"items": {"type": "integer"}}, {"items": {"minimum": 0, "maximum": 9}, "maxItems": 2}]})",
      {"[]", "[1]", "[1,2]"}, {"[10]", "[1,2,3]", "[true]"});
  ExpectTexts(
      R"({"$ref": "#/$defs/x", "maximum": 3, "$defs": {"x": {"type": "integer", "minimum": 1}}})",
      {"1", "3"}, {"0", "4"});
  ExpectTexts(R"({"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"],
                  "anyOf": [{"properties": {"k": {"maximum": 1, "minimum": 1}}},
                            {"properties": {"m": {"const": 5}}, "required": ["m"]}]})",
              {R"({"k":1})", R"({"k":9,"m":5})"}, {R"({"k":2})", R"({"k":2,"m":6})"});
  const std::string tree = R"({"$ref": "#/$defs/node", "$defs": {
      "base": {"type": "object", "properties": {"v": {"type": "boolean"}}, "required": ["v"]},
      "node": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"next": {"$ref": "#/$defs/node"}}}]}}})";
  ExpectTexts(tree, {R"({"v":true})", R"({"v":true,"next":{"v":false,"next":{"v":true}}})"},
              {R"({"v":1})", R"({"v":true,"next":{}})"});
  const std::string two = R"({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
      "a": {"type": "object", "properties": {"n": {"$ref": "#/$defs/a"}}},
      "b": {"properties": {"n": {"$ref": "#/$defs/b"}}, "additionalProperties": false}}})";
  ExpectTexts(two, {"{}", R"({"n":{}})", R"({"n":{"n":{"n":{}}}})"}, {R"({"n":1})", R"({"m":{}})"});
  for (const char* schema :
       {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})",
        R"({"allOf": [{"const": 1}, {"const": 2}]})",
        R"({"allOf": [{"enum": [1]}, {"enum": [2]}]})", R"({"allOf": [true, false]})",
        R"({"allOf": [{"type": "string", "pattern": "^a$"}, {"pattern": "^b$"}]})",
        R"({"allOf": [{"type": "string"}, {"not": {}}]})"}) {
    EXPECT_FALSE(GrammarOfSchema(schema).ok()) << schema;
  }
  ExpectTexts(R"({"allOf": [{"$ref": "#"}, {"type": "integer"}]})", {"1"}, {"true"});
}

// Schemas that grow without end are refused.
TEST(JsonSchema, AllOfIsBounded) {
  Json defs = Json::object();
  for (int i = 0; i < 40; ++i) {
    const Json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
    defs[std::to_string(i)] = {{"allOf", {{{"allOf", {next}}}, {{"allOf", {next}}}}},
                               {"properties", {{"p" + std::to_string(i), next}}}};
  }
  defs["40"] = {{"type", "object"}};
  (void)GrammarOfSchema(Json({{"$ref", "#/$defs/0"}, {"$defs", defs}}).dump());
  Json all = Json::array();
  for (int i = 0; i < 30; ++i) {
    all.push_back({{"$ref", "#/$defs/" + std::to_string(i)}});
    Json properties = Json::object();
    for (int j = 0; j < 30; ++j)
      properties[std::to_string(j)] = {{"$ref", "#/$defs/" + std::to_string((i * 7 + j) % 30)}};
    defs[std::to_string(i)] = {{"properties", properties}};
  }
  (void)GrammarOfSchema(Json({{"allOf", all}, {"$defs", defs}}).dump());
}

Json ManyDefs(int count) {
  Json defs = Json::object();
  for (int i = 0; i < count; ++i) {
    defs.get_ref<Json::object_t&>().push_back(
        {std::to_string(i), {{"type", "string"}, {"description", std::string(60, 'x')}}});
  }
  return defs;
}

std::string ErrorOf(const Json& schema) {
  return GrammarOfSchema(schema.dump()).status().message();
}

// What '$ref' finds, and texts for people, are not copied beside alternatives.
TEST(JsonSchema, AlternativesCopyNoDefinitions) {
  Json schema = {{"type", "object"},
                 {"description", std::string(100'000, 'x')},
                 {"$defs", ManyDefs(400)},
                 {"anyOf", Json::array()}};
  for (int i = 0; i < 30; ++i) {
    schema["anyOf"].push_back({{"properties", {{"a" + std::to_string(i), {{"$ref", "#/$defs/7"}}}}},
                               {"required", {"a" + std::to_string(i)}},
                               {"additionalProperties", false}});
  }
  ExpectTexts(schema.dump(), {R"({"a3":"x"})"}, {R"({"a3":1})", "{}"});
  schema = {{"type", "object"}, {"$defs", ManyDefs(10'000)}, {"anyOf", Json::array()}};
  for (int i = 0; i < 100'000; ++i) schema["anyOf"].push_back(Json::object());
  (void)ErrorOf(schema);
}

TEST(JsonSchema, ReferencesCopyNoDefinitions) {
  Json schema = {{"type", "object"}, {"$defs", ManyDefs(10'000)}};
  Json all = Json::array();
  for (int i = 0; i < 1000; ++i) all.push_back({{"$ref", "#/$defs/a"}, {"minProperties", 0}});
  schema["$defs"]["a"] = {{"properties", {{"n", {{"type", "null"}}}}},
                          {"additionalProperties", false},
                          {"$defs", ManyDefs(10'000)}};
  schema["allOf"] = all;
  ExpectTexts(schema.dump(), {"{}", R"({"n":null})"}, {"1", R"({"n":1})"});
  schema = {{"type", "integer"}, {"$defs", ManyDefs(10'000)}};
  for (int i = 0; i < 1000; ++i) {
    schema["$defs"]["b" + std::to_string(i)] = {{"$ref", "#"}, {"minimum", 1}};
  }
  schema["$defs"]["list"] = {{"type", "array"}, {"prefixItems", Json::array()}};
  for (int i = 0; i < 1000; ++i) {
    schema["$defs"]["list"]["prefixItems"].push_back(
        {{"$ref", "#/$defs/b" + std::to_string(i)}, {"maximum", 5}});
  }
  schema["anyOf"] = {{{"minimum", 3}}, {{"maximum", 1}}};
  ExpectTexts(schema.dump(), {"3", "1"}, {"2"});
}

// Schemas that hold together are compared only up to a size.
TEST(JsonSchema, MergedSchemasAreBounded) {
  Json all = Json::array();
  for (int part = 0; part < 100; ++part) {
    Json properties = Json::object();
    for (int i = 0; i < 1000; ++i) {
      properties.get_ref<Json::object_t&>().push_back({std::to_string(part * 1000 + i), true});
    }
    all.push_back({{"properties", properties}});
  }
  EXPECT_NE(ErrorOf({{"allOf", all}}).find("more than 10000 properties"), std::string::npos);
  Json values = Json::array();
  for (int i = 0; i < 20'000; ++i) values.push_back(std::to_string(i));
  Json others = values;
  others.push_back("more");
  EXPECT_NE(
      ErrorOf({{"allOf", {{{"enum", values}}, {{"enum", others}}}}}).find("too many to compare"),
      std::string::npos);
  EXPECT_NE(ErrorOf({{"allOf", {{{"required", values}}, {{"required", others}}}}})
                .find("more than 10000 properties"),
            std::string::npos);
  const Json one = {{"properties", {{"a", true}}}, {"required", {"a"}}};
  ExpectTexts(Json({{"allOf", {one, {{"minProperties", 1}}, one}}}).dump(), {R"({"a":1})"}, {"{}"});
}

TEST(JsonSchema, DisjointSchemasAreBounded) {
  Json one_of = Json::array();
  for (int i = 0; i < 2000; ++i) one_of.push_back({{"const", i}});
  EXPECT_NE(ErrorOf({{"oneOf", one_of}}).find("too many to compare"), std::string::npos);
  one_of.erase(one_of.begin() + 500, one_of.end());
  ExpectTexts(Json({{"oneOf", one_of}}).dump(), {"0", "499"}, {"500"});
  Json long_lists = Json::array();
  for (int i = 0; i < 10; ++i) {
    Json values = Json::array();
    for (int j = 0; j < 3000; ++j) values.push_back(i * 3000 + j);
    long_lists.push_back({{"enum", values}});
  }
  EXPECT_NE(ErrorOf({{"oneOf", long_lists}}).find("too many to compare"), std::string::npos);
}

TEST(JsonSchema, TextsWithLengthsPatternsAndFormats) {
  ExpectTexts(R"({"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("abc")"},
              {R"("a")", R"("abcd")", R"("AB")"});
  ExpectTexts(R"({"pattern": "^\\w{2,9}$", "maxLength": 3})", {R"("ab")", R"("a_1")"},
              {R"("a")", R"("abcd")"});
  ExpectTexts(R"({"pattern": "^[ab]*$", "minLength": 1})", {R"("a")", R"("abab")"}, {R"("")"});
  ExpectTexts(R"({"pattern": "^(ab|c)d?$", "minLength": 1, "maxLength": 3})",
              {R"("abd")", R"("c")"}, {R"("ab")x)"});
  ExpectTexts(R"({"format": "date", "minLength": 10, "maxLength": 10})", {R"("2024-02-28")"}, {});
  ExpectTexts(R"({"pattern": "abc", "minLength": 3})", {R"("abc")", R"("xabcx")"}, {R"("ab")"});
  ExpectTexts(R"({"pattern": "^(ab)+$", "maxLength": 4})", {R"("ab")", R"("abab")"},
              {R"("ababab")", R"("aba")"});
  ExpectTexts(R"({"type": "string", "pattern": "a", "maxLength": 4})", {R"("xaxx")"},
              {R"("xxxx")", R"("xxxxa")"});
  ExpectTexts(R"({"pattern": "^a|b$", "maxLength": 3})", {R"("axx")", R"("xxb")"}, {R"("xax")"});
  ExpectTexts(R"({"type": "string", "format": "date", "pattern": "^2024-"})", {R"("2024-12-31")"},
              {R"("2023-12-31")", R"("2024-12-32")"});
  for (const char* schema :
       {R"({"type": "string", "pattern": "^a{3}$", "maxLength": 2})",
        R"({"type": "string", "minLength": 2, "maxLength": 0})",
        R"({"allOf": [{"type": "string", "minLength": 5}, {"maxLength": 4}]})",
        R"({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 1})",
        R"({"type": "integer", "minimum": 2, "maximum": 1})",
        R"({"type": "string", "pattern": "^(ab)+$", "minLength": 9999, "maxLength": 9999})"}) {
    EXPECT_NE(ErrorOf(Json::parse(schema)).find("allows no value"), std::string::npos) << schema;
  }
  ExpectTexts(R"({"type": "string", "minLength": 2, "maxLength": 3})",
              {R"("ab")", R"("éé")", R"("a\nb")"}, {R"("a")", R"("abcd")"});
  ExpectTexts(R"({"pattern": "^[a-c]{2,3}(-\\d+)?$"})", {R"("ab")", R"("abc-12")"},
              {R"("a")", R"("ab-")", R"("abd")"});
  ExpectTexts(R"({"pattern": "b+"})", {R"("b")", R"("abba")"}, {R"("a")"});
  // A '^' behind a character and a '$' before one match nothing; beside others they take away only their own texts.
  ExpectTexts(R"({"pattern": "x*^a"})", {R"("a")", R"("ab")"}, {R"("xa")", R"("b")"});
  ExpectTexts(R"({"pattern": "(^|b)a|c^"})", {R"("a")", R"("cba")"}, {R"("ca")", R"("c")"});
  ExpectTexts(R"({"pattern": "a($c*|b)x*"})", {R"("a")", R"("xa")", R"("abx")"}, {R"("ac")"});
  ExpectTexts(R"({"pattern": "(?=^a)a(?!$)b*"})", {R"("ab")"}, {R"("a")", R"("ba")"});
  // Patterns that have some characters alike.
  ExpectTexts(
      R"({"allOf": [{"type": "string", "pattern": "^(a|bc)+$"}, {"pattern": "^[ab]*$|c{2}"}]})",
      {R"("a")", R"("aaa")"}, {R"("ab")", R"("bc")"});
  ExpectTexts(R"({"type": "string", "format": "date-time", "pattern": "z$|[T~]00"})",
              {R"("2024-02-29T00:00:00Z")", R"("2024-02-29T10:00:00z")"},
              {R"("2024-02-29T10:00:00Z")"});
  ExpectTexts(R"({"pattern": "^(x|\"|\\\\)$"})", {R"("x")", R"("\"")", R"("\\")"}, {R"("\")"});
  ExpectTexts(R"({"pattern": "^[^a]$"})", {R"("b")", R"("é")"}, {R"("a")", R"("bb")"});
  ExpectTexts(R"({"type": "string", "format": "date"})", {R"("2024-02-28")"}, {R"("2024-13-01")"});
  ExpectTexts(R"({"type": "string", "format": "uuid"})",
              {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"});
}

TEST(JsonSchema, ConstantsBranchesAndReferences) {
  ExpectTexts(R"({"enum": ["a", 1, {"k": [null]}]})", {R"("a")", "1", R"({"k":[null]})"},
              {R"("b")"});
  ExpectTexts(R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"});
  ExpectTexts(R"({"const": "x"})", {R"("x")"}, {R"("y")"});
  ExpectTexts(R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", {"1", "null"}, {"true"});
  ExpectTexts(R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"1", R"("s")"}, {"true"});
  const std::string tree = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
      "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"},
      {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": false}}})";
  ExpectTexts(tree, {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
              {R"({"v":1})", R"({"v":1,"next":{"v":2}})"});
}

TEST(JsonSchema, RefusesWhatItDoesNotEnforce) {
  const auto message = [](const std::string& schema) {
    const auto grammar = GrammarOfSchema(schema);
    EXPECT_FALSE(grammar.ok()) << schema;
    return grammar.status().message();
  };
  EXPECT_NE(message(R"({"type": "object", "unevaluatedProperties": false})")
                .find("unevaluatedProperties"),
            std::string::npos);
  EXPECT_NE(message(R"({"contains": {"type": "null"}})").find("contains"), std::string::npos);
  EXPECT_NE(message(R"({"type": "integer", "not": {"multipleOf": 3}})").find("'not'"),
            std::string::npos);
  EXPECT_NE(message(R"({"if": {"multipleOf": 3}, "then": {"minimum": 1}})").find("'if'"),
            std::string::npos);
  message(R"({"type": "object", "minProperties": 2})");
  // What refuses no value of the type is ignored.
  ExpectTexts(R"({"type": "null", "contains": {}, "uniqueItems": true, "not": {"type": "string"}})",
              {"null"}, {"1"});
  EXPECT_NE(message(R"({"type": "array", "uniqueItems": true})").find("uniqueItems"),
            std::string::npos);
  EXPECT_NE(message(R"({"type": "integer", "multipleOf": 10007})").find("multipleOf"),
            std::string::npos);
  EXPECT_NE(message(R"({"properties": {"a": {"type": "text"}}})").find("#/properties/a"),
            std::string::npos);
  message(
      R"({"oneOf": [{"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 3}]})");
  ExpectTexts(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"0.5", "15e-1", "-2.25"},
              {"1", "1.0", "15e0", "0"});
  message(R"({"$ref": "#"})");
  message(R"({"$ref": "http://example.com/x"})");
  message(R"({"$ref": "#/$defs/none"})");
  EXPECT_NE(message(R"({"type": "string", "pattern": "(?<=a)b"})").find("look back"),
            std::string::npos);
  EXPECT_NE(message(R"({"type": "string", "pattern": "(a)\\1"})").find("reference to a group"),
            std::string::npos);
  // Found at once: an assertion that never holds, or a character that no date has.
  for (const char* pattern : {"0^01", "a$b", "a(?=^b)", "(b|c)(^a|$a)", "(?=a$b)", "~5247", "N4",
                              "[a-s]|1x", "^(?!x)..-q$"}) {
    const Json schema = {{"type", "string"}, {"format", "date-time"}, {"pattern", pattern}};
    EXPECT_NE(message(schema.dump()).find("allows no value"), std::string::npos) << pattern;
  }
  EXPECT_NE(message(R"({"type": "string", "pattern": "(?=a)b"})").find("allows no value"),
            std::string::npos);
  message(R"({"type": "string", "pattern": "a(b"})");
  message(R"({"type": "string", "minLength": -1})");
  message(R"({"type": "string", "maxLength": 1000000})");
  message(R"({"type": "object", "properties": {"a": false}, "required": ["a"]})");
  message(R"({"type": "array", "minItems": 10000, "items": {"type": "array", "minItems": 10000,
              "items": {"enum": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]}},
              "prefixItems": [{"type": "string", "minLength": 10000}, {"pattern": "^a{9000}b{9000}$"},
              {"pattern": "^(ab){9000}c{9000}(abc){10000}(abcd){10000}[a-z]{10000}[b-z]{10000}$"},
              {"pattern": "^(ad){9000}c{9000}(aac){10000}(abad){10000}[a-e]{10000}[b-e]{10000}$"},
              {"pattern": "^(af){9000}c{9000}(acc){10000}(abcf){10000}[a-f]{10000}[b-f]{10000}$"}]})");
  message("3");
}

// Optional repetitions of optional repetitions: too much is refused, and nothing breaks.
TEST(JsonSchema, NestedRepetitionsAreBounded) {
  EXPECT_NE(ErrorOf({{"type", "string"}, {"pattern", "^((a?){0,9999}){0,9999}$"}})
                .find("repetitions are written out"),
            std::string::npos);
  ExpectTexts(R"({"type": "string", "pattern": "^(.{1,100}){1,50}$"})",
              {"\"a\"", "\"" + std::string(5000, 'x') + "\""},
              {"\"\"", "\"" + std::string(5001, 'x') + "\""});
  for (const char* pattern :
       {"^(.{0,300}){0,100}$", "^((a?){0,200}){0,200}$", "^(.{2,9}b?){0,400}$"}) {
    auto grammar = GrammarOfSchema(Json({{"type", "string"}, {"pattern", pattern}}).dump());
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    const auto table = std::make_shared<const TokenTable>(
        std::vector<std::string>{"\"", "a", "</s>"}, std::vector<std::int32_t>{2});
    TokenMask mask(table, std::make_shared<const Grammar>(std::move(*grammar)));
    for (int step = 0; step < 20; ++step) {
      std::vector<float> logits(3, 1.0f);
      ASSERT_TRUE(mask.Apply(logits)) << pattern;
      ASSERT_TRUE(mask.Take(step == 0 ? 0 : 1)) << pattern;
    }
  }
}

// All keywords have the form of the standard, those of other types of values too.
TEST(JsonSchema, RefusesKeywordsOfAnotherForm) {
  for (const auto& [schema, problem] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "string", "minimum": "x"})", "'minimum' that is not a number"},
           {R"({"type": "string", "required": ["a", "a"]})",
            "'required' that is not an array of strings that differ"},
           {R"({"type": ["string", "string"]})", "'type' that is not the name of a type"},
           {R"({"type": "integer", "title": 5})", "'title' that is not a string"},
           {R"({"type": "integer", "$defs": 5})", "'$defs' that is not an object of schemas"},
           {R"({"type": "integer", "$defs": {"a": 1}})",
            "'$defs' that is not an object of schemas"},
           {R"({"type": "integer", "minLength": -1})", "'minLength' that is not a whole number"},
           {R"({"type": "string", "minItems": 1.5})", "'minItems' that is not a whole number"},
           {R"({"type": "string", "properties": []})", "'properties' that is not an object"},
           {R"({"type": "string", "items": "x"})", "'items' that is not a schema"},
           {R"({"type": "string", "nullable": "yes"})", "'nullable' that is not a boolean"},
           {R"({"anyOf": []})", "'anyOf' that is not an array of schemas, at least one"},
           {R"({"anyOf": [5]})", "'anyOf' that is not an array of schemas, at least one"},
           {R"({"type": "number", "multipleOf": 0})", "'multipleOf' that is not a number above 0"},
           {R"({"type": "object", "properties": {"a": {"enum": 5}}})",
            "at '#/properties/a' has 'enum' that is not an array"}}) {
    const auto grammar = GrammarOfSchema(schema);
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_NE(grammar.status().message().find(problem), std::string::npos)
        << schema << ": " << grammar.status().message();
  }
}

}  // namespace
}  // namespace kvcache::json_schema_test
