// What calls and answers are beside tools: arguments, tools that may be called, thoughts before a form.
#include <string>
#include <vector>

#include "server/request/tools_testing.h"

namespace kvcache::server::tool_forms_test {
namespace {

// Templates see what a tool came with, nothing more; keys of the API alone are not the function's.
TEST_F(ToolsTest, ToolsKeepTheirKeys) {
  const auto prompt = [&](const Json& tool) {
    return Post("/apply-template", Json{{"messages", Question()}, {"tools", Json::array({tool})}})
        .json()["prompt"]
        .get<std::string>();
  };
  Json function = {{"parameters", Json::object()}, {"name", "f"}, {"strict", false}, {"more", 1}};
  const Json tool = {{"type", "function"}, {"function", function}};
  const std::string written =
      R"([{"type": "function", "function": {"parameters": {}, "name": "f", "strict": false, "more": 1}}])";
  EXPECT_NE(prompt(tool).find(written), std::string::npos) << prompt(tool);
  EXPECT_NE(prompt({{"type", "function"}, {"function", {{"name", "f"}}}})
                .find(R"([{"type": "function", "function": {"name": "f"}}])"),
            std::string::npos);
  const auto tokens = [&](const char* path, const Json& body) {
    const Json json = Post(path, body).json();
    return json.contains("input_tokens") ? json["input_tokens"] : json["usage"]["prompt_tokens"];
  };
  const Json open = {
      {"messages", Question()},
      {"max_tokens", 1},
      {"tools", Json::array({Json({{"type", "function"}, {"function", Function()}})})}};
  Json flat = Function();
  flat["type"] = "function";
  const Json response = {{"input", "How is the weather?"}, {"tools", Json::array({flat})}};
  Json custom = {{"type", "custom"}, {"cache_control", {{"type", "ephemeral"}}}};
  custom.update({{"name", "get_weather"},
                 {"description", "Weather"},
                 {"input_schema", Function()["parameters"]}});
  const Json anthropic = {{"messages", Question()}, {"tools", Json::array({custom})}};
  const Json expected = tokens("/v1/chat/completions", open);
  EXPECT_EQ(tokens("/v1/responses/input_tokens", response), expected);
  EXPECT_EQ(tokens("/v1/messages/count_tokens", anthropic), expected);
}

// {} and what has no type allow any value; arguments are always an object.
TEST_F(ToolsTest, ForcedCallsHaveAnObject) {
  const Json any = {{"$ref", "#/$defs/x"}, {"$defs", {{"x", Json::object()}}}};
  const Json schemas = {
      Json::object(),
      nullptr,
      {{"description", "x"}},
      {{"properties", {{"a", {{"type", "boolean"}}}}}},
      {{"type", {"object", "null"}}, {"additionalProperties", false}},
      {{"anyOf", {{{"type", "object"}, {"maxProperties", 0}}, {{"type", "null"}}}}},
      any,
      {{"enum", {1, {{"a", 2}}}}}};
  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  const auto check = [](const Json& call, const Json& schema) {
    const Json& function = call.contains("function") ? call["function"] : call;
    const Json arguments = Json::parse(function["arguments"].get<std::string>(), nullptr, false);
    EXPECT_TRUE(arguments.is_object()) << schema << call;
  };
  for (const Json& schema : schemas) {
    const bool may_go_on = schema == any;
    Json open = OpenAi();
    open["temperature"] = 1;
    open["max_tokens"] = 900;
    open["tools"][1]["function"]["parameters"] = schema;
    Json response = {{"input", "How is the weather?"}, {"max_output_tokens", 900}};
    response["tools"] = Json::array({open["tools"][1]["function"]});
    response["tools"][0]["type"] = "function";
    Json anthropic = Anthropic();
    anthropic["max_tokens"] = 900;
    anthropic["temperature"] = 1;
    anthropic["tools"][1]["input_schema"] = schema.is_null() ? Json::object() : schema;
    for (int seed = 0; seed < 4; ++seed) {
      open["tool_choice"] = seed % 2 == 0 ? Json("required") : named;
      open["seed"] = response["seed"] = seed;
      const Json choice = Post("/v1/chat/completions", open).json()["choices"][0];
      if (choice["finish_reason"] != "length" || !may_go_on)
        check(choice["message"]["tool_calls"][0], schema);
      response["tool_choice"] =
          seed % 2 == 0 ? Json("required") : Json({{"type", "function"}, {"name", "get_weather"}});
      const Json whole = Post("/v1/responses", response).json();
      if (whole["status"] == "completed" || !may_go_on) check(whole["output"][0], schema);
      anthropic["tool_choice"] = seed % 2 == 0 ? Json({{"type", "any"}})
                                               : Json({{"type", "tool"}, {"name", "get_weather"}});
      const Json message = Post("/v1/messages", anthropic).json();
      if (message["stop_reason"] == "max_tokens" && may_go_on) continue;
      EXPECT_TRUE(message["content"][0]["input"].is_object()) << schema << message;
    }
  }
  Json open = OpenAi();
  open["tool_choice"] = "required";
  for (const Json& type : {Json("string"), Json({"string", "null"}), Json("array")}) {
    open["tools"][1]["function"]["parameters"] = {{"type", type}};
    const HttpAnswer answer = Post("/v1/chat/completions", open);
    EXPECT_EQ(answer.status, 400) << type;
    EXPECT_NE(answer.body.find("must be \\\"object\\\""), std::string::npos) << answer.body;
  }
}

// Of several tools some may be called; the prompt has them all.
TEST_F(ToolsTest, AllowedTools) {
  Json other = Function();
  other["name"] = "paint";
  Json open = OpenAi();
  open["max_tokens"] = 300;
  open["tools"].push_back(Json({{"type", "function"}, {"function", other}}));
  const auto allowed = [&](const char* mode, const std::vector<std::string>& names) {
    Json tools = Json::array();
    for (const std::string& name : names) {
      tools.push_back({{"type", "function"}, {"function", {{"name", name}}}});
    }
    tools.push_back({{"type", "web_search"}});
    return Json{{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", tools}}}};
  };
  const Json all = Post("/v1/chat/completions", open).json();
  open["tool_choice"] = allowed("auto", {"get_weather"});
  const Json one = Post("/v1/chat/completions", open).json();
  EXPECT_EQ(one["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(one["choices"][0]["message"]["content"], kText);
  EXPECT_EQ(one["usage"]["prompt_tokens"], all["usage"]["prompt_tokens"]);
  EXPECT_EQ(one["usage"]["prompt_tokens_details"]["cached_tokens"],
            one["usage"]["prompt_tokens"].get<int>() - 1);
  // The script calls the tool that is not allowed.
  open["tool_choice"] = allowed("auto", {"paint"});
  const Json forbidden = Post("/v1/chat/completions", open).json()["choices"][0];
  for (const Json& call : forbidden["message"].value("tool_calls", Json::array())) {
    EXPECT_EQ(call["function"]["name"], "paint") << forbidden;
  }
  for (int seed = 0; seed < 4; ++seed) {
    open["tool_choice"] = allowed("required", {"paint"});
    open["seed"] = seed;
    open["temperature"] = 1;
    const Json forced = Post("/v1/chat/completions", open).json()["choices"][0];
    EXPECT_EQ(forced["finish_reason"], "tool_calls") << forced;
    EXPECT_EQ(forced["message"]["tool_calls"][0]["function"]["name"], "paint") << forced;
  }
  for (const Json& none :
       {allowed("auto", {}),
        Json{{"type", "allowed_tools"},
             {"allowed_tools", {{"mode", nullptr}, {"tools", Json::array()}}}},
        Json{{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", Json::array()}}}) {
    for (const bool strict : {false, true}) {
      Json body = open;
      body["tools"][1]["function"]["strict"] = strict;
      body["temperature"] = 0;
      const Json asked = Post("/v1/chat/completions", body).json();
      body["tool_choice"] = none;
      const Json answer = Post("/v1/chat/completions", body).json();
      const Json& message = answer["choices"][0]["message"];
      EXPECT_FALSE(message.contains("tool_calls")) << answer;
      EXPECT_TRUE(message["content"].get<std::string>().starts_with(kText)) << answer;
      EXPECT_EQ(message["content"].get<std::string>().find("<tool_call>"), std::string::npos);
      EXPECT_EQ(answer["usage"]["prompt_tokens"], asked["usage"]["prompt_tokens"]);
      // A form is the answer's then.
      body["response_format"] = {{"type", "json_schema"},
                                 {"json_schema", {{"schema", {{"const", 7}}}}}};
      const Json formed = Post("/v1/chat/completions", body).json();
      EXPECT_EQ(formed["choices"][0]["message"]["content"], "7") << formed;
      EXPECT_EQ(formed["usage"]["prompt_tokens"], asked["usage"]["prompt_tokens"]);
    }
  }
  for (const Json& wrong :
       {allowed("auto", {"none"}), allowed("some", {"paint"}), allowed("required", {}),
        Json({{"type", "allowed_tools"}}), Json({{"type", "allowed_tools"}, {"tools", 5}}),
        Json({{"type", "allowed_tools"}, {"allowed_tools", 5}}),
        Json({{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", Json::array({5})}})}) {
    open["tool_choice"] = wrong;
    EXPECT_EQ(Post("/v1/chat/completions", open).json()["error"]["param"], "tool_choice") << wrong;
  }
  const Json response = {
      {"input", "How is the weather?"},
      {"temperature", 0},
      {"tools", Json::array({Json({{"type", "function"}, {"name", "paint"}}),
                             Json({{"type", "function"}, {"name", "get_weather"}})})},
      {"tool_choice",
       {{"type", "allowed_tools"},
        {"mode", "auto"},
        {"tools", Json::array({Json({{"type", "function"}, {"name", "get_weather"}})})}}}};
  const Json whole = Post("/v1/responses", response).json();
  EXPECT_EQ(whole["output"].back()["name"], "get_weather") << whole;
  EXPECT_EQ(whole["tool_choice"], response["tool_choice"]);
  EXPECT_EQ(whole["tools"][0], Json({{"type", "function"},
                                     {"name", "paint"},
                                     {"description", nullptr},
                                     {"parameters", nullptr},
                                     {"strict", false}}));
}

// The script thinks if it has tools. With a form, thoughts come first if they are asked for.
TEST_F(ToolsTest, ThoughtsComeBeforeAForm) {
  const Json schema = {{"const", 7}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  for (const bool stream : {false, true}) {
    Json ollama = OpenAi();
    ollama.update({{"format", schema}, {"stream", stream}, {"options", {{"temperature", 0}}}});
    for (const bool think : {true, false}) {
      ollama["think"] = think;
      std::string lines = Post("/api/chat", ollama).body + "\n";
      std::string thoughts;
      std::string text;
      for (std::size_t end = lines.find('\n'); end != lines.npos; end = lines.find('\n')) {
        const Json line = Json::parse(lines.substr(0, end), nullptr, false);
        lines.erase(0, end + 1);
        if (!line.is_object()) continue;
        thoughts += line["message"].value("thinking", "");
        text += line["message"].value("content", "");
      }
      EXPECT_EQ(text, "7") << think << stream;
      EXPECT_EQ(thoughts, think ? kThoughts : "") << stream;
    }
  }
  Json open = OpenAi();
  open["response_format"] = format;
  const auto message = [&](const char* name, const Json& value) {
    Json body = open;
    body[name] = value;
    return Post("/v1/chat/completions", body).json()["choices"][0]["message"];
  };
  EXPECT_EQ(message("reasoning_effort", "high")["reasoning_content"], kThoughts);
  EXPECT_EQ(message("reasoning_effort", "high")["content"], "7");
  EXPECT_EQ(message("chat_template_kwargs", {{"enable_thinking", true}})["reasoning_content"],
            kThoughts);
  for (const Json& more : {message("reasoning_effort", "none"),
                           message("chat_template_kwargs", {{"enable_thinking", false}})}) {
    EXPECT_FALSE(more.contains("reasoning_content")) << more;
    EXPECT_EQ(more["content"], "7");
  }
  Json anthropic = Anthropic();
  anthropic["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  anthropic["output_config"] = {{"format", {{"type", "json_schema"}, {"schema", schema}}}};
  const Json content = Post("/v1/messages", anthropic).json()["content"];
  EXPECT_EQ(content[0]["thinking"], kThoughts) << content;
  EXPECT_EQ(content[1]["text"], "7");
  Json response = {{"input", "How is the weather?"},
                   {"temperature", 0},
                   {"reasoning", {{"effort", "low"}}},
                   {"text", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}};
  response["tools"] = Json::array({Function()});
  response["tools"][0]["type"] = "function";
  const Json output = Post("/v1/responses", response).json()["output"];
  EXPECT_EQ(output[0]["content"][0]["text"], kThoughts) << output;
  EXPECT_EQ(output[1]["content"][0]["text"], "7");
}

}  // namespace
}  // namespace kvcache::server::tool_forms_test
