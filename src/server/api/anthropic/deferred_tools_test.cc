// Tools of Anthropic's API that a conversation loads, adds and removes, with a model that calls "get_weather".
#include <string>
#include <vector>

#include "server/request/tools_testing.h"

namespace kvcache::server::deferred_tools_test {
namespace {

class DeferredToolsTest : public ScriptedServerTest {
 protected:
  DeferredToolsTest() : ScriptedServerTest(2048) {}

  static Json Tool(const std::string& name, bool deferred = false) {
    Json tool = {{"name", name},
                 {"description", "Does its work"},
                 {"input_schema",
                  {{"type", "object"},
                   {"properties", {{"city", {{"enum", Json::array({"Paris"})}}}}},
                   {"required", Json::array({"city"})},
                   {"additionalProperties", false}}}};
    if (deferred) tool["defer_loading"] = true;
    return tool;
  }
  static Json User(const Json& content) { return {{"role", "user"}, {"content", content}}; }
  // A call of a tool, and its result.
  static Json Called(const Json& content) {
    return Json::array(
        {User("How is the weather?"),
         {{"role", "assistant"},
          {"content", Json::array({{{"type", "tool_use"},
                                    {"id", "1"},
                                    {"name", "search"},
                                    {"input", Json::object()}}})}},
         User(Json::array(
             {{{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", content}}}))});
  }
  static Json Reference(const std::string& name) {
    return {{"type", "tool_reference"}, {"tool_name", name}};
  }
  static Json Change(const std::string& type, const Json& tool) {
    return {{"role", "system"}, {"content", Json::array({{{"type", type}, {"tool", tool}}})}};
  }
  static Json Named(const std::string& name) {
    return {{"type", "tool_reference"}, {"name", name}};
  }
  static Json Body(const Json& messages, const std::vector<Json>& tools) {
    return {{"messages", messages}, {"max_tokens", 100}, {"temperature", 0}, {"tools", tools}};
  }
  int Count(const Json& messages, const std::vector<Json>& tools) const {
    const HttpAnswer answer = Post("/v1/messages/count_tokens", Body(messages, tools));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json().value("input_tokens", 0);
  }
  // The calls of an answer that must call a tool.
  std::vector<std::string> Forced(const Json& messages, const std::vector<Json>& tools,
                                  const Json& choice) const {
    Json body = Body(messages, tools);
    body["tool_choice"] = choice;
    const HttpAnswer answer = Post("/v1/messages", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::vector<std::string> names;
    for (const Json& block : answer.json().value("content", Json::array())) {
      if (block["type"] == "tool_use") names.push_back(block["name"].get<std::string>());
    }
    return names;
  }
};

TEST_F(DeferredToolsTest, APromptHasNoneThatNothingRefersTo) {
  const Json question = Json::array({User("How is the weather?")});
  EXPECT_EQ(Count(question, {Tool("search"), Tool("get_weather", true)}),
            Count(question, {Tool("search")}));
}

TEST_F(DeferredToolsTest, AReferenceWritesTheDefinitionWhereItStands) {
  const std::string definition =
      "\n<functions>\n"
      R"(<function>{"description":"Does its work","name":"get_weather","parameters":)"
      R"({"type":"object","properties":{"city":{"enum":["Paris"]}},"required":["city"],"additionalProperties":false}}</function>)"
      "\n</functions>\n";
  const std::vector<Json> tools = {Tool("search"), Tool("get_weather", true)};
  EXPECT_EQ(Count(Called(Json::array({Reference("get_weather")})), tools),
            Count(Called(Json(definition)), tools));
  Json added = Json::array({User("Hi"), Change("tool_addition", Named("get_weather"))});
  Json said = Json::array({User("Hi"), {{"role", "system"}, {"content", definition}}});
  EXPECT_EQ(Count(added, tools), Count(said, tools));
  const Json by_value = {{"type", "tool_definition"}, {"definition", Tool("get_weather")}};
  added[1] = Change("tool_addition", by_value);
  EXPECT_EQ(Count(added, {Tool("search")}), Count(said, {Tool("search")}));
}

TEST_F(DeferredToolsTest, LoadingAToolKeepsThePrefix) {
  const Json question = Json::array({User("How is the weather?")});
  const HttpAnswer first = Post("/v1/messages", Body(question, {Tool("search")}));
  ASSERT_EQ(first.status, 200) << first.body;
  const int prompt = Count(question, {Tool("search")});
  const Json loaded = Body(Called(Json::array({Reference("get_weather")})),
                           {Tool("search"), Tool("get_weather", true)});
  const HttpAnswer second = Post("/v1/messages", loaded);
  ASSERT_EQ(second.status, 200) << second.body;
  // All but the token that asks for the answer.
  EXPECT_GE(second.json()["usage"]["cache_read_input_tokens"].get<int>(), prompt - 1);
}

TEST_F(DeferredToolsTest, WhatMayBeCalledFollowsTheConversation) {
  const std::vector<Json> tools = {Tool("search"), Tool("get_weather", true)};
  const Json any = {{"type", "any"}};
  const Json only = {{"type", "tool"}, {"name", "get_weather"}};
  const auto calls = [](const std::string& name) { return std::vector<std::string>{name}; };
  EXPECT_EQ(Forced(Json::array({User("Hi")}), tools, any).at(0), "search");
  const Json loaded = Called(Json::array({Reference("get_weather")}));
  EXPECT_EQ(Forced(loaded, tools, only), calls("get_weather"));
  Json removed = loaded;
  removed.push_back(Change("tool_removal", Named("search")));
  for (const std::string& name : Forced(removed, tools, any)) EXPECT_EQ(name, "get_weather");
  removed.push_back(Change("tool_removal", Named("get_weather")));
  removed.push_back(Change("tool_addition", Named("search")));
  for (const std::string& name : Forced(removed, tools, any)) EXPECT_EQ(name, "search");
}

TEST_F(DeferredToolsTest, AModelCallsALoadedTool) {
  // The last message is no result, so that the model calls.
  Json messages = Called(Json::array({Reference("get_weather")}));
  messages.push_back(User("Now tell me."));
  const std::vector<Json> tools = {Tool("search"), Tool("get_weather", true)};
  const Json answer = Post("/v1/messages", Body(messages, tools)).json();
  ASSERT_EQ(answer["stop_reason"], "tool_use") << answer;
  EXPECT_EQ(answer["content"].back()["name"], "get_weather");
}

TEST_F(DeferredToolsTest, ErrorsNameTheTool) {
  const std::vector<Json> tools = {Tool("search")};
  const HttpAnswer gone =
      Post("/v1/messages", Body(Called(Json::array({Reference("gone")})), tools));
  EXPECT_EQ(gone.status, 400);
  EXPECT_NE(gone.body.find("gone"), std::string::npos) << gone.body;
  Json wrong = Tool("search");
  wrong["defer_loading"] = "yes";
  const HttpAnswer typed = Post("/v1/messages", Body(Json::array({User("Hi")}), {wrong}));
  EXPECT_EQ(typed.status, 400);
  EXPECT_NE(typed.body.find("tools[0].defer_loading"), std::string::npos) << typed.body;
  const Json unloaded = {{"type", "tool"}, {"name", "get_weather"}};
  Json body = Body(Json::array({User("Hi")}), {Tool("search"), Tool("get_weather", true)});
  body["tool_choice"] = unloaded;
  EXPECT_EQ(Post("/v1/messages", body).status, 400);
}

TEST_F(DeferredToolsTest, NoToolsMayBeCalledWhileTheConversationRefersToThem) {
  Json body = Body(Called(Json::array({Reference("get_weather")})),
                   {Tool("search"), Tool("get_weather", true)});
  body["tool_choice"] = {{"type", "none"}};
  EXPECT_EQ(Post("/v1/messages", body).status, 200);
}

}  // namespace
}  // namespace kvcache::server::deferred_tools_test
