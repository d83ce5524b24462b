// Tools and thoughts on all APIs, with a model that says what a script says.
#include "server/request/tools.h"

#include <string>
#include <vector>

#include "server/request/tools_testing.h"

namespace kvcache::server::tools_test {
namespace {

TEST_F(ToolsTest, OpenAiAnswersWithACall) {
  const Json choice = Post("/v1/chat/completions", OpenAi()).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
  const Json& message = choice["message"];
  EXPECT_EQ(message["reasoning_content"], kThoughts);
  EXPECT_EQ(message["content"], kText);
  ASSERT_EQ(message["tool_calls"].size(), 1);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["function"]["name"], "get_weather");
  EXPECT_EQ(Json::parse(call["function"]["arguments"].get<std::string>()), kArguments);
}

// Tools and a form of the answer whose grammars are small enough apart, and too large together.
TEST_F(ToolsTest, FormsThatAreTooLargeTogetherAreRefused) {
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"x", {{"type", "string"}, {"pattern", "^[ab]{0,9999}$"}}},
                         {"y", {{"type", "string"}, {"pattern", "^[cd]{0,9999}$"}}},
                         {"z", {{"type", "string"}, {"pattern", "^[ef]{0,9999}$"}}},
                         {"v", {{"type", "string"}, {"pattern", "^[gh]{0,9999}$"}}},
                         {"w", {{"type", "string"}, {"pattern", "^[ij]{0,9999}$"}}},
                         {"u", {{"type", "string"}, {"pattern", "^[kl]{0,4999}$"}}}}},
                       {"required", {"x", "y", "z", "v", "w", "u"}}};
  Json function = Function();
  function["parameters"] = schema;
  Json open = OpenAi();
  open["max_tokens"] = 1;
  const auto ask = [&](bool tools, bool form) {
    Json body = open;
    body["tools"] = tools ? Json::array({{{"type", "function"}, {"function", function}}}) : Json();
    if (form) {
      body["response_format"] = {{"type", "json_schema"},
                                 {"json_schema", {{"name", "x"}, {"schema", schema}}}};
    }
    return Post("/v1/chat/completions", body);
  };
  EXPECT_EQ(ask(true, false).status, 200);
  EXPECT_EQ(ask(false, true).status, 200);
  const HttpAnswer both = ask(true, true);
  EXPECT_EQ(both.status, 400) << both.body;
  EXPECT_EQ(both.json()["error"]["param"], "tools");
  function["name"] = "get_weather";
  const Json tools = Json::array({{{"type", "function"}, {"function", function}}});
  const Json messages = Question();
  EXPECT_EQ(
      Post("/api/chat", {{"messages", messages}, {"tools", tools}, {"format", schema}}).status,
      400);
  Json response = {{"input", "Hi"},
                   {"tools", Json::array({function})},
                   {"text", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}};
  response["tools"][0]["type"] = "function";
  EXPECT_EQ(Post("/v1/responses", response).status, 400);
  Json anthropic = Anthropic();
  anthropic["tools"] = Json::array({{{"name", "f"}, {"input_schema", schema}}});
  anthropic["output_format"] = {{"type", "json_schema"}, {"schema", schema}};
  EXPECT_EQ(Post("/v1/messages", anthropic).status, 400);
}

TEST_F(ToolsTest, OpenAiStreamsCallsWithIndicesAndOneId) {
  Json body = OpenAi();
  body["stream"] = true;
  std::string thoughts;
  std::string text;
  std::string arguments;
  std::vector<Json> calls;
  Json reason;
  for (const Json& event : Events(Post("/v1/chat/completions", body).body)) {
    const Json& delta = event["choices"][0]["delta"];
    thoughts += delta.value("reasoning_content", "");
    text += delta.value("content", "");
    reason = event["choices"][0]["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    ASSERT_EQ(delta["tool_calls"].size(), 1);
    calls.push_back(delta["tool_calls"][0]);
    EXPECT_EQ(calls.back()["index"], 0);
    EXPECT_EQ(calls.back().contains("id"), calls.size() == 1);
    EXPECT_EQ(calls.back()["function"].contains("name"), calls.size() == 1);
    arguments += calls.back()["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(thoughts, kThoughts);
  EXPECT_EQ(text, kText);
  EXPECT_EQ(Json::parse(arguments), kArguments);
  EXPECT_EQ(reason, "tool_calls");
}

TEST_F(ToolsTest, AnthropicAnswersWithBlocks) {
  const Json whole = Post("/v1/messages", Anthropic()).json();
  EXPECT_EQ(whole["stop_reason"], "tool_use") << whole;
  ASSERT_EQ(whole["content"].size(), 3);
  EXPECT_EQ(whole["content"][0]["thinking"], kThoughts);
  EXPECT_EQ(whole["content"][1], Json({{"type", "text"}, {"text", kText}}));
  EXPECT_EQ(whole["content"][2]["type"], "tool_use");
  EXPECT_EQ(whole["content"][2]["input"], kArguments);
  Json body = Anthropic();
  body["stream"] = true;
  std::vector<std::string> names;
  for (const auto& [name, data] : NamedEvents(Post("/v1/messages", body).body)) {
    std::string place = name;
    if (data.contains("index")) place += StrCat(" ", data["index"].get<int>());
    if (data.contains("content_block"))
      place += " " + data["content_block"]["type"].get<std::string>();
    if (name == "content_block_delta") place += " " + data["delta"]["type"].get<std::string>();
    if (names.empty() || names.back() != place) names.push_back(place);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "message_start", "content_block_start 0 thinking", "ping",
                "content_block_delta 0 thinking_delta", "content_block_delta 0 signature_delta",
                "content_block_stop 0", "content_block_start 1 text",
                "content_block_delta 1 text_delta", "content_block_stop 1",
                "content_block_start 2 tool_use", "content_block_delta 2 input_json_delta",
                "content_block_stop 2", "message_delta", "message_stop"}));
}

TEST_F(ToolsTest, OllamaAnswersWithACall) {
  Json body = OpenAi();
  body["stream"] = false;
  const Json whole = Post("/api/chat", body).json();
  EXPECT_EQ(whole["message"]["thinking"], kThoughts) << whole;
  EXPECT_EQ(whole["message"]["content"], kText);
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1);
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], kArguments);
  EXPECT_EQ(whole["done_reason"], "stop");
}

TEST_F(ToolsTest, AConversationWithAResultHasOnePromptOnAllApis) {
  Json open = OpenAi();
  const Json call = {
      {"id", "c1"},
      {"type", "function"},
      {"function", {{"name", "get_weather"}, {"arguments", "{\"city\": \"Paris\"}"}}}};
  open["messages"].push_back(
      Json({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}}));
  open["messages"].push_back(
      Json({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "22 degrees"}}));
  Json anthropic = Anthropic();
  const Json use = {
      {"type", "tool_use"}, {"id", "c1"}, {"name", "get_weather"}, {"input", kArguments}};
  anthropic["messages"].push_back(Json({{"role", "assistant"}, {"content", Json::array({use})}}));
  const Json result = {{"type", "tool_result"}, {"tool_use_id", "c1"}, {"content", "22 degrees"}};
  anthropic["messages"].push_back(Json({{"role", "user"}, {"content", Json::array({result})}}));
  const Json answer = Post("/v1/chat/completions", open).json();
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "The sun shines.") << answer;
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  const int prompt = answer["usage"]["prompt_tokens"].get<int>();
  EXPECT_EQ(Post("/v1/messages/count_tokens", anthropic).json()["input_tokens"], prompt);
  const Json other = Post("/v1/messages", anthropic).json();
  EXPECT_EQ(other["content"][0]["text"], "The sun shines.");
  EXPECT_EQ(other["usage"]["cache_read_input_tokens"], prompt - 1);
  EXPECT_NE(
      Post("/apply-template", open)
          .json()["prompt"]
          .get<std::string>()
          .find(
              R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>)"),
      std::string::npos);
}

TEST_F(ToolsTest, ChoicesOfTools) {
  Json body = OpenAi();
  body["tool_choice"] = "none";
  const Json none = Post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_EQ(none["message"]["content"], "The sun shines.");
  for (const Json& choice : {Json("other"), Json({{"type", "function"}}), Json(5),
                             Json({{"type", "function"}, {"function", {{"name", "another"}}}})}) {
    body["tool_choice"] = choice;
    const HttpAnswer answer = Post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.json()["error"]["param"], "tool_choice");
  }
  body = OpenAi();
  body["tools"][1]["function"]["strict"] = "yes";
  EXPECT_EQ(Post("/v1/chat/completions", body).json()["error"]["param"],
            "tools[1].function.strict");
  Json anthropic = Anthropic();
  anthropic["tool_choice"] = {{"type", "tool"}};
  EXPECT_EQ(Post("/v1/messages", anthropic).status, 400);
  anthropic["tool_choice"] = {{"type", "tool"}, {"name", "another"}};
  EXPECT_EQ(Post("/v1/messages", anthropic).status, 400);
  anthropic["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  EXPECT_EQ(Post("/v1/messages", anthropic).json()["stop_reason"], "tool_use");
  anthropic.erase("tools");
  EXPECT_EQ(Post("/v1/messages", anthropic).status, 400);
}

// The script has text before its call; a forced call has none.
TEST_F(ToolsTest, ForcedCallsFollowTheirSchemas) {
  Json function = Function();
  function["parameters"] = {{"type", "object"},
                            {"properties",
                             {{"unit", {{"enum", {"celsius", "kelvin"}}}},
                              {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}}},
                            {"required", {"unit", "days"}},
                            {"additionalProperties", false}};
  const auto check = [&](const std::string& name, const Json& arguments) {
    EXPECT_EQ(name, "get_weather");
    EXPECT_EQ(arguments.size(), 2) << arguments;
    EXPECT_TRUE(arguments["unit"] == "celsius" || arguments["unit"] == "kelvin") << arguments;
    EXPECT_TRUE(arguments["days"] >= 1 && arguments["days"] <= 9) << arguments;
  };
  Json open = OpenAi();
  open["tools"][1]["function"] = function;
  open["temperature"] = 1.5;
  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  for (const Json& choice : {Json("required"), named}) {
    for (int seed = 0; seed < 5; ++seed) {
      open["tool_choice"] = choice;
      open["parallel_tool_calls"] = false;
      open["seed"] = seed;
      const Json answer = Post("/v1/chat/completions", open).json()["choices"][0];
      EXPECT_EQ(answer["finish_reason"], "tool_calls") << answer;
      ASSERT_EQ(answer["message"]["tool_calls"].size(), 1) << answer;
      const Json call = answer["message"]["tool_calls"][0]["function"];
      check(call["name"], Json::parse(call["arguments"].get<std::string>()));
    }
  }
  Json anthropic = Anthropic();
  anthropic["tools"][1]["input_schema"] = function["parameters"];
  anthropic["temperature"] = 1;
  for (const Json& choice : {Json({{"type", "any"}, {"disable_parallel_tool_use", true}}),
                             Json({{"type", "tool"}, {"name", "get_weather"}})}) {
    anthropic["tool_choice"] = choice;
    const Json answer = Post("/v1/messages", anthropic).json();
    EXPECT_EQ(answer["stop_reason"], "tool_use") << answer;
    ASSERT_EQ(answer["content"].size(), 1) << answer;
    check(answer["content"][0]["name"], answer["content"][0]["input"]);
  }
  // A strict tool leaves the text free, and the calls follow the schema.
  open = OpenAi();
  open["tools"][1]["function"]["strict"] = true;
  const Json strict = Post("/v1/chat/completions", open).json()["choices"][0];
  EXPECT_EQ(strict["message"]["content"], kText) << strict;
  const Json& called = strict["message"]["tool_calls"][0]["function"]["arguments"];
  EXPECT_EQ(Json::parse(called.get<std::string>()), kArguments);
  // A reference to a group is no regular language.
  open["tools"][1]["function"]["parameters"]["properties"]["city"]["pattern"] = R"((a)\1)";
  EXPECT_EQ(Post("/v1/chat/completions", open).json()["error"]["param"], "tools");
}

}  // namespace
}  // namespace kvcache::server::tools_test
