// Answers whose form a request asks for, on all APIs, from a model that knows nothing of JSON.
#include "server/output/answer_constraint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::answer_constraint_test {
namespace {

struct Case {
  const char* schema;
  std::function<bool(const Json&)> holds;
};

// Schemas whose texts end by themselves.
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {R"({"type": "object", "properties": {"sure": {"type": "boolean"},
           "kind": {"enum": ["cat", "dog", 3, null]}}, "required": ["sure", "kind"]})",
       [](const Json& v) {
         const Json& kind = v["kind"];
         return v.size() == 2 && v["sure"].is_boolean() &&
                (kind == "cat" || kind == "dog" || kind == 3 || kind.is_null());
       }},
      {R"({"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 12},
           "minItems": 2, "maxItems": 4})",
       [](const Json& v) {
         bool all = v.size() >= 2 && v.size() <= 4;
         for (const Json& item : v) {  // 5.0 and 2e0 are whole numbers
           all = all && item.is_number() && item == std::floor(item.get<double>()) && item >= -5 &&
                 item <= 12;
         }
         return all;
       }},
      {R"({"type": "string", "minLength": 3, "maxLength": 6})",
       [](const Json& v) { return v.is_string() && v.get_ref<const std::string&>().size() >= 3; }},
      {R"({"type": "string", "pattern": "^[a-f]{2}-[0-9]{3}$"})",
       [](const Json& v) {
         const auto& text = v.get_ref<const std::string&>();
         return text.size() == 6 && text[2] == '-' && text[0] <= 'f' && text[5] >= '0';
       }},
      {R"({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "boolean"},
           "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}},
           "required": ["v", "next"]},
           "leaf": {"const": {"end": true}}}, "$ref": "#/$defs/n"})",
       [](const Json& v) {
         return v["v"].is_boolean() && (v["next"].is_null() || v["next"] == Json({{"end", true}}));
       }},
      {R"({"type": "number", "minimum": 0, "exclusiveMaximum": 2})",
       [](const Json& v) { return v.is_number() && v >= 0 && v < 2; }}};
  return cases;
}

class AnswerFormTest : public ServerTest {
 protected:
  static Json ResponseFormat(const Json& schema) {
    return {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  }
};

TEST_F(AnswerFormTest, EveryApiFollowsASchema) {
  for (const Case& each : Cases()) {
    const Json schema = Json::parse(each.schema);
    for (int seed = 0; seed < 6; ++seed) {
      Json body = Chat("Say something", 300);
      body["response_format"] = ResponseFormat(schema);
      body["seed"] = seed;
      body["temperature"] = seed == 0 ? 0.0 : 1.6;
      const Json open = Post("/v1/chat/completions", body).json()["choices"][0];
      EXPECT_EQ(open["finish_reason"], "stop") << open;
      const std::string text = open["message"]["content"];
      ASSERT_TRUE(Json::accept(text)) << text;
      EXPECT_TRUE(each.holds(Json::parse(text))) << each.schema << " " << text;
      const Json ollama = {
          {"messages", body["messages"]},
          {"format", schema},
          {"stream", false},
          {"options",
           {{"seed", seed}, {"temperature", body["temperature"]}, {"num_predict", 300}}}};
      EXPECT_EQ(Post("/api/chat", ollama).json()["message"]["content"], text);
      if (seed > 0) continue;  // a seed is none of Anthropic's fields
      const Json anthropic = {{"messages", body["messages"]},
                              {"max_tokens", 300},
                              {"temperature", 0},
                              {"output_format", {{"type", "json_schema"}, {"schema", schema}}}};
      EXPECT_EQ(Post("/v1/messages", anthropic).json()["content"][0]["text"], text);
    }
  }
}

TEST_F(AnswerFormTest, AStreamHasTheSameText) {
  Json body = Chat("Say something", 300);
  body["response_format"] = ResponseFormat(Json::parse(Cases()[0].schema));
  body["seed"] = 4;
  const std::string whole =
      Post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"];
  body["stream"] = true;
  const std::string events = Post("/v1/chat/completions", body).body;
  std::string text;
  for (std::size_t at = 0; (at = events.find("data: {", at)) != std::string::npos;) {
    const std::size_t end = events.find('\n', at);
    const Json event = Json::parse(events.substr(at + 6, end - at - 6));
    text += event["choices"][0]["delta"].value("content", "");
    at = end;
  }
  EXPECT_EQ(text, whole);
}

// Objects that may have more properties get none from a model that knows no JSON, and take those that are begun.
TEST_F(AnswerFormTest, OpenObjectsEnd) {
  const Json schema = Json::parse(
      R"({"type": "object", "properties": {"sure": {"type": "boolean"},
          "of": {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}}},
          "required": ["sure", "of"]})");
  Json body = Chat("Say something", 300);
  body["response_format"] = ResponseFormat(schema);
  body["temperature"] = 1;
  for (int seed = 0; seed < 100; ++seed) {
    body["seed"] = seed;
    const Json choice = Post("/v1/chat/completions", body).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << choice;
    const Json value = Json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(value.size() == 2 && value["of"].size() <= 1) << value;
  }
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", R"({"sure":true,"of":{"kind":"cat","age":1)"}});
  body["max_tokens"] = 1;
  const HttpAnswer more = Post("/v1/chat/completions", body);
  EXPECT_EQ(more.status, 200) << more.body;
  body["response_format"]["json_schema"]["schema"]["properties"]["of"]["additionalProperties"] =
      false;
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 400);
}

// A whole number is written in digits, though 5.0 and 5e0 are whole, too.
TEST_F(AnswerFormTest, WholeNumbersAreDigits) {
  Json body = Chat("Say something", 300);
  body["temperature"] = 1;
  for (const char* const schema :
       {R"({"type": "integer", "minimum": 0, "maximum": 100})", R"({"enum": [1, 20, 300]})",
        R"({"type": "number", "multipleOf": 5, "minimum": -20, "maximum": 20})"}) {
    body["response_format"] = ResponseFormat(Json::parse(schema));
    for (int seed = 0; seed < 30; ++seed) {
      body["seed"] = seed;
      const Json choice = Post("/v1/chat/completions", body).json()["choices"][0];
      const std::string text = choice["message"]["content"];
      EXPECT_EQ(choice["finish_reason"], "stop") << text;
      EXPECT_EQ(text.find_first_not_of("-0123456789"), std::string::npos) << text;
    }
  }
}

TEST_F(AnswerFormTest, JsonWithoutASchemaIsAnObject) {
  for (int seed = 0; seed < 4; ++seed) {
    Json body = Chat("Say something", 60);
    body["response_format"] = {{"type", "json_object"}};
    body["seed"] = seed;
    const Json choice = Post("/v1/chat/completions", body).json()["choices"][0];
    const std::string text = choice["message"]["content"];
    EXPECT_TRUE(text.starts_with("{")) << text;
    if (choice["finish_reason"] == "stop") {
      EXPECT_TRUE(Json::accept(text)) << text;
    }
  }
}

TEST_F(AnswerFormTest, SchemasThatAreNotEnforcedAreRefused) {
  for (const Json& schema :
       {Json({{"not", Json::object()}}), Json({{"type", "text"}}),
        Json({{"type", "array"}, {"uniqueItems", true}}), Json({{"$ref", "#"}})}) {
    Json body = Chat("Say something", 5);
    body["response_format"] = ResponseFormat(schema);
    const HttpAnswer open = Post("/v1/chat/completions", body);
    EXPECT_EQ(open.status, 400) << open.body;
    EXPECT_EQ(open.json()["error"]["param"], "response_format");
    EXPECT_EQ(Post("/api/chat", Json({{"messages", body["messages"]}, {"format", schema}})).status,
              400);
    const Json anthropic = {
        {"messages", body["messages"]},
        {"max_tokens", 5},
        {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}};
    EXPECT_EQ(Post("/v1/messages", anthropic).status, 400);
  }
}

// A grammar of more than half the symbols that one may have.
Json LargeSchema() {
  Json values = Json::array();
  for (int i = 0; i < 12; ++i) values.push_back(std::string(10'000, static_cast<char>('a' + i)));
  return {{"type", "object"}, {"properties", {{"x", {{"enum", values}}}}}, {"required", {"x"}}};
}

// Two forms that are small enough apart, and too large together.
TEST_F(AnswerFormTest, FormsThatAreTooLargeTogetherAreRefused) {
  const AnswerForm large = *SchemaForm(LargeSchema());
  const auto both = EitherForm(large, large);
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(both.status().message().find("has more than"), std::string::npos);
  EXPECT_TRUE(AfterThoughts(large, Thoughts::kBegun, {}).ok());
}

// A form that is too large behind thoughts leaves those of other requests as they are.
TEST(AnswerFormGrammar, ARefusedFormChangesNoOther) {
  FramedForms forms;
  const Dialect dialect = *FindDialect("hermes");
  bool refused = false;
  for (std::size_t size = 199'800; size < 200'000 && !refused; ++size) {
    const AnswerForm before = *forms.Of(JsonObjectForm(), Thoughts::kBegun, dialect);
    const auto large = SchemaForm({{"const", std::string(size, 'z')}});
    refused = large.ok() && !forms.Of(*large, Thoughts::kBegun, dialect).ok();
    if (refused) {
      EXPECT_EQ(*forms.Of(JsonObjectForm(), Thoughts::kBegun, dialect), before);
    }
  }
  EXPECT_TRUE(refused);
}

// Calls after thoughts that the prompt has begun, and calls without tags.
TEST(AnswerFormGrammar, CallsAndThoughts) {
  const auto matches = [](const AnswerForm& form, const std::string& text) {
    GrammarAutomaton automaton(form->allowed);
    GrammarAutomaton::State state = automaton.start();
    for (const char c : text) state = automaton.Next(state, static_cast<unsigned char>(c));
    return state != GrammarAutomaton::kDead && automaton.Accepts(state);
  };
  const AnswerForm json = JsonObjectForm();
  const AnswerForm after = *AfterThoughts(json, Thoughts::kBegun, {});
  EXPECT_TRUE(matches(after, "a < b <</think>\n\n{}"));
  EXPECT_FALSE(matches(after, "a < b"));
  EXPECT_FALSE(matches(after, "a</think>b{}"));
  const AnswerForm perhaps = *AfterThoughts(json, Thoughts::kMayBegin, {});
  EXPECT_TRUE(matches(perhaps, "<think>a < b <</think>\n\n{}"));
  EXPECT_TRUE(matches(perhaps, "{}"));
  EXPECT_FALSE(matches(perhaps, "<think>a"));
  EXPECT_FALSE(matches(perhaps, "a</think>{}"));
  const Json tools =
      Json::array({{{"type", "function"},
                    {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}});
  const AnswerForm tagged = *CallsForm({.tools = tools, .forced = true}, *FindDialect("hermes"));
  const std::string call = R"({"name": "f", "arguments": {"a": 1}})";
  EXPECT_TRUE(matches(tagged, "<tool_call>\n" + call + "\n</tool_call>"));
  EXPECT_TRUE(
      matches(tagged, "<tool_call>" + call + "</tool_call>\n<tool_call>" + call + "</tool_call>"));
  EXPECT_FALSE(matches(tagged, "well <tool_call>" + call + "</tool_call>"));
  const AnswerForm free = *CallsForm({.tools = tools, .one = true}, *FindDialect("hermes"));
  EXPECT_TRUE(matches(free, "well, 1 <to"));
  EXPECT_TRUE(matches(free, "well <tool_call>" + call + "</tool_call>"));
  EXPECT_FALSE(matches(free, "well <tool_call>{}</tool_call>"));
  EXPECT_TRUE(matches(*CallsForm({.tools = tools, .forced = true}, *FindDialect("json")),
                      R"({"name":"f","parameters":{}})"));
  // Without tags, the beginning of the answer says whether it is a call.
  const AnswerForm bare = *CallsForm({.tools = tools}, *FindDialect("json"));
  for (const char* text :
       {"", " \n", "well, {} [", "\n[1] says", "[ ", R"( {"name":"f","parameters":{}})"}) {
    EXPECT_TRUE(matches(bare, text)) << text;
  }
  for (const char* text : {"{", " {}", R"([{"name":"g"}])", R"({"name":"g","parameters":{}})",
                           R"({"name":"f","parameters":[]})"}) {
    EXPECT_FALSE(matches(bare, text)) << text;
  }
  const AnswerForm python = *CallsForm({.tools = tools}, *FindDialect("python"));
  for (const char* text : {"", "well [g()]", " [f()]", "[f(), f()]"}) {
    EXPECT_TRUE(matches(python, text)) << text;
  }
  for (const char* text : {"[g()]", "[f(", "[1] says"}) EXPECT_FALSE(matches(python, text)) << text;
  EXPECT_TRUE(matches(*EitherForm(tagged, json), "{}"));
}

}  // namespace
}  // namespace kvcache::server::answer_constraint_test
