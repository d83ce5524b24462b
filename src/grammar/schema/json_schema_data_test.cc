// A form never changes data: what a schema allows can be written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar_automaton.h"
#include "grammar/grammar_testing.h"

namespace kvcache::json_schema_data_test {
namespace {

using Json = nlohmann::ordered_json;

void ExpectTexts(const std::string& schema, const std::vector<std::string>& allowed,
                 const std::vector<std::string>& others) {
  const auto grammar = GrammarOfSchema(schema);
  ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  for (const std::string& text : allowed)
    EXPECT_TRUE(Matches(*grammar, text)) << schema << " " << text;
  for (const std::string& text : others)
    EXPECT_FALSE(Matches(*grammar, text)) << schema << " " << text;
}

TEST(JsonSchemaData, NumbersOfAnySize) {
  ExpectTexts(R"({"type": "number"})",
              {"123456789012345678901234567890.123456789012345678901234567890", "1e+21", "5E-324",
               "-0.0", "1.7976931348623157e308", "1.5e-7", std::string(100, '9')},
              {"1e309", "01", ".5", "1.", "-", std::string(400, '9')});
  ExpectTexts(R"({"type": "integer"})",
              {"123456789012345678901234567890", "1.0", "1e3", "1.5e1", "1e+21", "100e-2", "0e5"},
              {"1.5", "1e-1", "15e-1", "-0"});
  ExpectTexts(R"({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991})",
              {"9007199254740991", "-9007199254740991", "0", "9.007199254740991e15", "7"},
              {"9007199254740992", "-9007199254740992", "1e16", "0.5"});
  ExpectTexts(R"({"type": "integer", "minimum": 18446744073709551615})",
              {"18446744073709551615", "1e30"}, {"18446744073709551614", "1"});
  ExpectTexts(R"({"type": "number", "minimum": 1e25, "maximum": 1e26})",
              {"10000000000000000000000000", "5e25", "99999999999999999999999999.5"},
              {"9999999999999999999999999", "2e26", "1"});
}

TEST(JsonSchemaData, ExclusiveBoundsOfFractions) {
  ExpectTexts(R"({"type": "number", "exclusiveMinimum": 0})",
              {"0.5", "1.5", "1e-300", "0.0001", "10"}, {"0", "-1", "0.0", "0e5", "-0.5"});
  ExpectTexts(R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
              {"0.5", "0.999999", "5e-1", "50e-2", "0.1234567890123456789012345678901"},
              {"0", "1", "1.0", "10e-1", "1.5", "0.99999999999999999999"});
  ExpectTexts(R"({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5})", {"1.5", "1.25"},
              {"1", "1.00000000000000000001", "1.51"});
  ExpectTexts(R"({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2})",
              {"1", "1.0"}, {"0", "2"});
}

TEST(JsonSchemaData, Patterns) {
  const auto pattern = [](const char* text) {
    return Json({{"type", "string"}, {"pattern", text}}).dump();
  };
  ExpectTexts(pattern(R"(^[\s\S]+$)"), {R"("a\nb")", R"("\u0000")", R"("é")"}, {R"("")", "\"\n\""});
  ExpectTexts(pattern(R"(^\s$)"), {R"(" ")", R"("\t")", "\"\u00a0\"", "\"\ufeff\"", R"("\u2028")"},
              {R"("a")", "\"\u200b\""});
  ExpectTexts(pattern(R"(^\S\w\W\d\D$)"), {R"("éa-1é")"}, {R"(" a-1x")", R"("aé-1x")"});
  ExpectTexts(pattern(R"(^.$)"), {R"("😀")", R"("\ud83d\ude00")"}, {R"("\n")", R"("ab")"});
  ExpectTexts(pattern(R"(^\p{L}+\P{L}$)"), {R"("aéЖ中1")"}, {R"("1")", R"("ab")"});
  ExpectTexts(pattern(R"(^\p{Script=Greek}\p{Nd}\p{Emoji_Presentation}$)"), {"\"ω٣😀\""},
              {"\"w٣😀\""});
  ExpectTexts(pattern(R"(^[α-ωéà]$)"), {"\"β\"", "\"é\"", R"("\u00e9")"}, {"\"a\"", "\"è\""});
  ExpectTexts(pattern(R"(^[^a\n]$)"), {"\"b\"", "\"é\""}, {"\"a\"", R"("\n")"});
  ExpectTexts(pattern(R"(\bcat\b)"), {R"("a cat.")", R"("cat")"}, {R"("concat")", R"("cats")"});
  ExpectTexts(pattern(R"(^(?=.*\d)(?!.*x)[a-z\d]{3,5}$)"), {R"("ab1")", R"("12345")"},
              {R"("abc")", R"("x12")", R"("a1")"});
  ExpectTexts(pattern(R"(^\u{1F600}\x41\u0042\cJ\0$)"), {R"("😀AB\n\u0000")"}, {R"("AB")"});
  ExpectTexts(pattern(R"(^$|^[0-9a-f]{4}$)"), {R"("")", R"("00ff")"}, {R"("0")", R"("00fff")"});
  ExpectTexts(pattern("^(?<year>\\d{4})\\/(?:a|b)*?$"), {R"("2024/ab")", R"("2024\/")"},
              {R"("24/")"});
}

TEST(JsonSchemaData, ObjectsOfAnyProperties) {
  ExpectTexts(R"({"type": "object", "properties": {"a": {"type": "integer"}}})",
              {"{}", R"({"a":1})", R"({"a":1,"b":2})", R"({"b":[]})"},
              {R"({"a":"x"})", R"({"b":1,"a":"x"})", R"({"b":1,"\u0061":"x"})"});
  ExpectTexts(R"({"type": "object", "propertyNames": {"type": "string"},
                  "additionalProperties": {"type": "number"}})",
              {R"({"any":1})"}, {R"({"any":"x"})"});
  ExpectTexts(R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "required": ["a", "b"],
                  "additionalProperties": {"type": "number"}})",
              {R"({"a":1,"b":2})"}, {R"({"a":1})", R"({"a":1,"b":2,"c":3})"});
  ExpectTexts(
      R"({"type": "object", "patternProperties": {"^x_": {"type": "null"}, "_y$": {"type": ["null", "string"]}},
                  "additionalProperties": {"type": "boolean"}})",
      {R"({"x_1":null,"b":true,"a_y":"s"})", R"({"x_y":null})"},
      {R"({"x_1":true})", R"({"b":null})", R"({"x_y":"s"})"});
  ExpectTexts(
      R"({"type": "object", "minProperties": 1, "maxProperties": 2, "properties": {"a": true, "b": true, "c": true},
                  "additionalProperties": false})",
      {R"({"a":1})", R"({"b":1,"c":2})"}, {"{}", R"({"a":1,"b":2,"c":3})"});
  ExpectTexts(
      R"({"properties": {"k": {"enum": ["x", "y"]}, "v": true}, "required": ["k"], "type": "object",
                  "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["v"]},
                  "else": {"properties": {"v": false}}, "additionalProperties": false})",
      {R"({"k":"x","v":1})", R"({"k":"y"})"}, {R"({"k":"x"})", R"({"k":"y","v":1})"});
  ExpectTexts(R"({"not": {"type": ["string", "object", "array"]}})", {"1", "null", "false"},
              {"\"a\"", "{}", "[]"});
  ExpectTexts(R"({"type": ["string", "integer"], "not": {"enum": ["a", 3]}})",
              {"\"b\"", "2", "4", "\"aa\""}, {"\"a\"", "3", "3.0", R"("\u0061")"});
}

// Properties that a schema neither names nor forbids are allowed and unwanted.
TEST(JsonSchemaData, PropertiesThatNobodyAskedFor) {
  struct Case {
    const char* schema;
    std::vector<std::string> wanted, unwanted;
  };
  const std::vector<Case> cases = {
      {R"({"type": "object", "properties": {"a": {"const": 1}}})",
       {R"({})", R"({"a":1})"},
       {R"({"b":1})", R"({"a":1,"b":{}})"}},
      {R"({"properties": {"a": {"const": 1}}, "required": ["b"]})",
       {R"({"b":[]})", R"({"a":1,"b":2})", "3"},
       {R"({"b":1,"c":1})"}},
      {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"b":1})"}},
      {R"({"type": "integer"})", {"0", "-12"}, {"5.0", "1e3"}},
      {R"({"type": "integer", "minimum": 100, "maximum": 1000000})", {"100", "1000000"}, {"1e6"}},
      {R"({"type": "number", "multipleOf": 2})", {"12"}, {"12.0"}},
      {R"({"enum": [1, "a"]})", {"1", "\"a\""}, {"1.0"}},
      {R"({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "object"}}}})",
       {R"([{"a":{"x":{"y":1}}},{}])"},
       {R"([{},{"b":1}])"}},
      {R"({"type": "object", "patternProperties": {"^a": {"const": 1}}})",
       {R"({"ab":1,"ac":1})"},
       {R"({"b":1})"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}},
                     {"properties": {"b": {"const": 2}}}]})",
       {R"({"a":1,"b":2})"},
       {R"({"a":1,"c":2})"}}};
  for (const Case& each : cases) {
    const auto grammar = GrammarOfSchema(each.schema);
    ASSERT_TRUE(grammar.ok()) << each.schema;
    const auto wanted = WantedPart(*grammar);
    ASSERT_TRUE(wanted.has_value()) << each.schema;
    for (const std::string& text : each.wanted) {
      EXPECT_TRUE(Matches(*wanted, text) && Matches(*grammar, text)) << each.schema << text;
    }
    for (const std::string& text : each.unwanted) {
      EXPECT_TRUE(!Matches(*wanted, text) && Matches(*grammar, text)) << each.schema << text;
    }
    // A copy, and what holds the copy, knows it too.
    GrammarBuilder builder;
    const GrammarSymbol copy = builder.Copy(*grammar);
    const auto more = builder.Finish(builder.AnyOf({Joined(builder.Literal("x"), {copy})}));
    EXPECT_TRUE(Matches(*WantedPart(*more), "x" + each.wanted[0])) << each.schema;
    EXPECT_FALSE(Matches(*WantedPart(*more), "x" + each.unwanted[0])) << each.schema;
  }
  for (const char* const schema :
       {R"({"type": "object"})", R"({"type": "object", "propertyNames": {"maxLength": 3}})",
        R"({"properties": {"a": {}}, "additionalProperties": true})",
        R"({"properties": {"a": {}}, "additionalProperties": {"type": "null"}})",
        R"({"properties": {"a": {}}, "additionalProperties": false})", R"({"minProperties": 1})",
        R"({"type": "object", "properties": {"a": false}, "minProperties": 1})"}) {
    EXPECT_FALSE(WantedPart(*GrammarOfSchema(schema)).has_value()) << schema;
  }
}

// What clients' libraries write.
TEST(JsonSchemaData, SchemasOfLibraries) {
  ExpectTexts(
      R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
      "properties": {
        "id": {"type": "string", "format": "uuid", "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"},
        "mail": {"type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"},
        "day": {"type": "string", "format": "date", "pattern": "^(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)-02-29|\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|(?:02)-(?:0[1-9]|1\\d|2[0-8])))$"},
        "long": {"type": "string", "format": "duration", "pattern": "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"},
        "count": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "tags": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}}},
      "required": ["id", "mail", "day", "long", "count", "tags"], "additionalProperties": false})",
      {R"({"id":"123e4567-e89b-12d3-a456-426614174000","mail":"a.b@c-d.org","day":"2024-12-31","long":"P1DT2H","count":3,"tags":{"x":0.5}})"},
      {R"({"id":"123e4567-e89b-92d3-a456-426614174000","mail":"a.b@c-d.org","day":"2024-12-31","long":"P1D","count":3,"tags":{}})",
       R"({"id":"123e4567-e89b-12d3-a456-426614174000","mail":"a..b@c-d.org","day":"2024-12-31","long":"P1D","count":3,"tags":{}})",
       R"({"id":"123e4567-e89b-12d3-a456-426614174000","mail":"a.b@c-d.org","day":"2024-12-32","long":"P1D","count":3,"tags":{}})",
       R"({"id":"123e4567-e89b-12d3-a456-426614174000","mail":"a.b@c-d.org","day":"2024-12-31","long":"P1W2D","count":3,"tags":{}})"});
  const std::string pets = R"({"$defs": {
      "Cat": {"title": "Cat", "type": "object", "properties": {"kind": {"const": "cat", "default": "cat", "title": "Kind", "type": "string"}, "lives": {"type": "integer"}}, "required": ["lives"]},
      "Dog": {"title": "Dog", "type": "object", "properties": {"kind": {"const": "dog", "default": "dog", "title": "Kind", "type": "string"}, "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null}}, "required": ["kind"]}},
    "properties": {"pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
                           "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}},
    "required": ["pet"], "title": "Owner", "type": "object"})";
  ExpectTexts(pets,
              {R"({"pet":{"kind":"cat","lives":9}})", R"({"pet":{"kind":"dog","name":null}})",
               R"({"pet":{"lives":9}})"},
              {R"({"pet":{"kind":"dog","name":1}})", R"({"pet":{"kind":"cow"}})"});
}

// What is known of one constant says nothing of others.
TEST(JsonSchemaData, ConstantsOfOtherSchemas) {
  ExpectTexts(R"({"$defs": {"o": {"type": "object", "propertyNames": {"enum": ["a", "b"]}}},
                  "type": "object", "additionalProperties": false, "required": ["x", "y"],
                  "properties": {"x": {"$ref": "#/$defs/o"},
                                 "y": {"$ref": "#/$defs/o", "properties": {"c": {"type": "integer"}}}}})",
              {R"({"x":{},"y":{}})", R"({"x":{"a":1},"y":{"b":1}})"},
              {R"({"x":{},"y":{"c":1}})", R"({"x":{"c":1},"y":{}})"});
  ExpectTexts(R"({"$defs": {"n": {"const": "a"}}, "prefixItems": [{"$ref": "#/$defs/n"},
                  {"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "properties": {"c": {}}}],
                  "minItems": 2, "type": "array", "items": false})",
              {R"(["a",{"a":1}])", R"(["a",{}])"}, {R"(["a",{"c":1}])"});
  ExpectTexts(R"({"enum": [1, [1], [2], [[1]]], "items": {"$ref": "#"}})", {"1", "[1]", "[[1]]"},
              {"[2]"});
  ExpectTexts(
      R"({"enum": [{"a": 1}, {"a": {"a": 1}}, 1, {"a": 2}], "properties": {"a": {"$ref": "#"}}})",
      {"1", R"({"a":1})", R"({"a":{"a":1}})"}, {R"({"a":2})"});
}

// Constants are checked as numbers, however they are written.
TEST(JsonSchemaData, ConstantsBesideMultiples) {
  ExpectTexts(R"({"enum": [1e20, 3e20, 1e21, 7], "multipleOf": 5})", {"1e+20", "3e+20", "1e+21"},
              {"7"});
  ExpectTexts(R"({"const": 5e-7, "multipleOf": 5e-9})", {"5e-07"}, {"5e-9"});
  ExpectTexts(R"({"enum": [1e300, 0, -0.5, 0.3, -1.5e-7, 12.5], "multipleOf": 0.25})",
              {"1e+300", "0", "-0.5", "12.5"}, {"0.3", "-1.5e-07"});
  ExpectTexts(R"({"enum": [1e22, 2.5, 3], "type": "integer"})", {"1e+22", "3"}, {"2.5"});
  ExpectTexts(R"({"enum": [1e22, 2.5, 3, 1e-9, 0], "not": {"type": "integer"}})", {"2.5", "1e-09"},
              {"3", "1e+22", "0"});
  ExpectTexts(R"({"enum": [1, 2, 3, 1e30, -5], "exclusiveMinimum": 1, "maximum": 1e30})",
              {"2", "3", "1e+30"}, {"1", "-5"});
}

TEST(JsonSchemaData, OneOfNullables) {
  ExpectTexts(
      R"({"oneOf": [{"type": "string", "nullable": true}, {"type": "integer", "nullable": true}]})",
      {"1", R"("a")"}, {"null", "true"});
  ExpectTexts(R"({"oneOf": [{"type": "string", "nullable": true}, {"type": "integer"}]})",
              {"1", R"("a")", "null"}, {"true"});
  ExpectTexts(R"({"oneOf": [{"const": "a", "nullable": true}, {"enum": ["b", null]}]})",
              {R"("a")", R"("b")"}, {"null"});
  ExpectTexts(R"({"oneOf": [{"enum": [1], "nullable": true}, {"type": ["null", "string"]}]})",
              {"1", R"("b")"}, {"null"});
  ExpectTexts(
      R"({"oneOf": [{"type": "object", "required": ["k"], "properties": {"k": {"const": "a", "nullable": true}}},
                            {"type": "object", "required": ["k"], "properties": {"k": {"const": "b", "nullable": true}}}]})",
      {R"({"k":"a"})", R"({"k":"b"})"}, {R"({"k":null})"});
}

// Doubles read no fraction as a whole number.
TEST(JsonSchemaData, FractionsAsDoubles) {
  const std::string schema = R"({"type": "number", "not": {"type": "integer"}})";
  ExpectTexts(schema,
              {"0.5", "-0.1", "1e-300", "5e-324", "0.1234567890123456", "-1234567.25", "99.9e-1",
               "0.9999999999999998", "3.000000000000001", "9.999999999999998", "1e-9",
               "123456789012345.6", "0.3333333333333333333333333333333"},
              {"27860848E-800", "1e-324", "-1e-999", "0.99999999999999999999", "1", "1.0",
               "1.00000000000000000001", "-7.9999999999999999999", "10000000000000000000.5",
               "12345678901234567.5", "99999999999999999999e-20", "1000000000000000000001e-21"});
  std::mt19937 random(7);
  auto grammar = GrammarOfSchema(schema);
  ASSERT_TRUE(grammar.ok());
  GrammarAutomaton automaton(*std::move(grammar));
  const std::string_view bytes = "000999.123456789-e";
  for (int walk = 0; walk < 2000; ++walk) {
    GrammarAutomaton::State state = automaton.start();
    std::string text;
    for (int step = 0; step < 200 && !(text.size() > 20 && automaton.Accepts(state)); ++step) {
      const char byte = bytes[random() % bytes.size()];
      const auto next = automaton.Next(state, static_cast<unsigned char>(byte));
      if (next == GrammarAutomaton::kDead) continue;
      state = next;
      text += byte;
    }
    if (!automaton.Accepts(state)) continue;
    const double value = std::strtod(text.c_str(), nullptr);
    EXPECT_NE(value, std::floor(value)) << text;
  }
  ASSERT_FALSE(automaton.full());
}

}  // namespace
}  // namespace kvcache::json_schema_data_test
