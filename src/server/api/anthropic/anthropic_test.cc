// Anthropic's routes, through sockets.
#include <string>
#include <utility>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::anthropic_test {
namespace {

TEST_F(ServerTest, AnthropicHasTheTextsOfOpenAi) {
  Json body = Chat("Tell me of a bird.");
  body["temperature"] = 1;
  body["seed"] = 5;
  const std::string expected = ChatText(body);
  const Json whole = Post("/v1/messages", body).json();
  ASSERT_EQ(whole["content"].size(), 1);
  EXPECT_EQ(whole["content"][0], Json({{"type", "text"}, {"text", expected}}));
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["role"], "assistant");
  EXPECT_EQ(whole["model"], "story");
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  EXPECT_EQ(whole["usage"]["output_tokens"], 24);
  const int prompt = Post("/v1/messages/count_tokens", body).json()["input_tokens"].get<int>();
  EXPECT_EQ(whole["usage"]["cache_read_input_tokens"], prompt - 1);
  EXPECT_EQ(whole["usage"]["input_tokens"], 1);
  EXPECT_EQ(whole["usage"]["cache_creation_input_tokens"], 0);
}

TEST_F(ServerTest, AnthropicsEventsHaveTheDocumentedOrder) {
  Json body = Chat("Tell me of a fish.");
  body["stream"] = true;
  const HttpAnswer answer = Post("/v1/messages", body);
  const auto events = NamedEvents(answer.body);
  ASSERT_GE(events.size(), 7);
  std::vector<std::string> names;
  std::string text;
  for (const auto& [name, data] : events) {
    EXPECT_EQ(data["type"], name);
    if (names.empty() || names.back() != name) names.push_back(name);
    if (name == "content_block_delta") text += data["delta"]["text"].get<std::string>();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"message_start", "content_block_start", "ping",
                                             "content_block_delta", "content_block_stop",
                                             "message_delta", "message_stop"}));
  EXPECT_EQ(text, ChatText(Chat("Tell me of a fish.")));
  const Json& start = events.front().second["message"];
  EXPECT_EQ(start["content"], Json::array());
  EXPECT_EQ(start["stop_reason"], nullptr);
  const Json& end = events[events.size() - 2].second;
  EXPECT_EQ(end["delta"], Json({{"stop_reason", "max_tokens"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(end["usage"]["output_tokens"], 24);
  for (const char* name : {"input_tokens", "cache_read_input_tokens"}) {
    EXPECT_EQ(end["usage"][name], start["usage"][name]);
  }
  // The second time, what is cached is known before the first token.
  const auto again = NamedEvents(Post("/v1/messages", body).body);
  const Json usage = again.front().second["message"]["usage"];
  EXPECT_EQ(usage["input_tokens"], 1);
  EXPECT_EQ(usage["cache_read_input_tokens"].get<int>() + 1,
            Post("/v1/messages/count_tokens", body).json()["input_tokens"].get<int>());
}

TEST_F(ServerTest, AnthropicReadsBlocksAndStops) {
  const Json plain = Chat("Tell me of a fox.", 40);
  Json blocks = plain;
  blocks["messages"][0]["content"] = Json::array(
      {{{"type", "text"}, {"text", "Tell me "}}, {{"type", "text"}, {"text", "of a fox."}}});
  const std::string text = ChatText(plain);
  EXPECT_EQ(Post("/v1/messages", blocks).json()["content"][0]["text"], text);
  blocks["stop_sequences"] = {text.substr(10, 3)};
  const Json cut = Post("/v1/messages", blocks).json();
  EXPECT_EQ(cut["stop_reason"], "stop_sequence");
  EXPECT_EQ(cut["stop_sequence"], text.substr(10, 3));
  EXPECT_EQ(cut["content"][0]["text"], text.substr(0, text.find(text.substr(10, 3))));
  Json with_system = plain;
  with_system["messages"].insert(with_system["messages"].begin(),
                                 Json({{"role", "system"}, {"content", "Be kind."}}));
  Json system = plain;
  system["system"] = Json::array({{{"type", "text"}, {"text", "Be kind."}}});
  EXPECT_EQ(Post("/v1/messages", system).json()["content"][0]["text"], ChatText(with_system));
}

TEST_F(ServerTest, CacheControlCountsWhatItMarksAnew) {
  Json body = Chat("Which one is the question?", 4);
  const Json text = {
      {"type", "text"},
      {"text", "A long text about foxes, birds and cows, which is kept for an hour."},
      {"cache_control", {{"type", "ephemeral"}, {"ttl", "1h"}}}};
  body["system"] = Json::array({text});
  const int prompt = Post("/v1/messages/count_tokens", body).json()["input_tokens"].get<int>();
  const Json first = Post("/v1/messages", body).json()["usage"];
  const int created = first["cache_creation_input_tokens"].get<int>();
  const int read = first["cache_read_input_tokens"].get<int>();
  EXPECT_GT(created, 10);
  EXPECT_EQ(first["input_tokens"].get<int>() + created + read, prompt);
  EXPECT_GT(first["input_tokens"].get<int>(), 5) << "the question is not marked";
  body["messages"][0]["content"] = "Another question?";
  const Json second = Post("/v1/messages", body).json()["usage"];
  EXPECT_EQ(second["cache_creation_input_tokens"], 0);
  EXPECT_GE(second["cache_read_input_tokens"].get<int>(), created + read);
  // The pinned text outlives what makes room; the question does not.
  for (int i = 0; i < 24; ++i) {
    (void)ChatText(Chat(StrCat("Story number ", i, " of many that fill the pool"), 400));
  }
  const Json probe = {
      {"messages",
       Json::array({Json({{"role", "system"}, {"content", text["text"]}}), body["messages"][0]})}};
  const Json left = Post("/probe", probe).json();
  EXPECT_GE(left["cached_tokens"].get<int>(), created + read);
  EXPECT_LT(left["cached_tokens"].get<int>(), left["prompt_tokens"].get<int>() - 1);
}

TEST_F(ServerTest, CacheControlIsChecked) {
  for (const Json& control :
       {Json(5), Json({{"type", "other"}}), Json::object(),
        Json({{"type", "ephemeral"}, {"ttl", "2h"}}), Json({{"type", "ephemeral"}, {"ttl", 5}})}) {
    Json body = Chat("Hi");
    body["system"] =
        Json::array({Json({{"type", "text"}, {"text", "x"}, {"cache_control", control}})});
    const HttpAnswer answer = Post("/v1/messages", body);
    EXPECT_EQ(answer.status, 400) << control;
    EXPECT_NE(answer.body.find("cache_control"), std::string::npos) << answer.body;
  }
  Json body = Chat("Hi", 2);
  body["cache_control"] = {{"type", "ephemeral"}};
  const Json usage = Post("/v1/messages", body).json()["usage"];
  EXPECT_EQ(usage["input_tokens"], 1);
  const Json marked = {{"type", "text"}, {"text", "x"}, {"cache_control", {{"type", "ephemeral"}}}};
  body["system"] = Json::array({marked, marked, marked, marked});
  EXPECT_EQ(Post("/v1/messages", body).status, 400) << "a fifth mark";
}

// Returns a conversation with system messages in all places.
Json SystemsEverywhere(const Json& system_text) {
  const auto message = [](const char* role, const Json& content) {
    return Json{{"role", role}, {"content", content}};
  };
  return Json::array({message("system", "Be brief."), message("user", "Hi"),
                      message("system", system_text), message("assistant", "Hello."),
                      message("system", system_text), message("user", "Go on."),
                      message("system", system_text)});
}

TEST_F(ServerTest, AnthropicTakesSystemMessagesAnywhere) {
  Json body = {
      {"messages", SystemsEverywhere("Speak of dogs.")}, {"max_tokens", 8}, {"temperature", 0}};
  const Json chat = Post("/v1/chat/completions", body).json();
  const int tokens = chat["usage"]["prompt_tokens"].get<int>();
  const std::string text = chat["choices"][0]["message"]["content"].get<std::string>();
  const Json block = {{"type", "text"}, {"text", "Speak of dogs."}};
  Json marked = block;
  marked["cache_control"] = {{"type", "ephemeral"}};
  for (const Json& content :
       {Json("Speak of dogs."), Json::array({block}), Json::array({marked})}) {
    body["messages"] = SystemsEverywhere(content);
    const HttpAnswer answer = Post("/v1/messages", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["content"][0]["text"], text);
    EXPECT_EQ(Post("/v1/messages/count_tokens", body).json()["input_tokens"], tokens);
  }
  // The first one may be beside the messages.
  body["system"] = "Be brief.";
  body["messages"].erase(0);
  EXPECT_EQ(Post("/v1/messages/count_tokens", body).json()["input_tokens"], tokens);
  body["stream"] = true;
  EXPECT_EQ(NamedEvents(Post("/v1/messages", body).body).front().first, "message_start");
  for (const Json& content :
       {Json(), Json(5), Json::array({{{"type", "image"}}}), Json::object()}) {
    body["messages"][1]["content"] = content;
    const HttpAnswer refused = Post("/v1/messages", body);
    EXPECT_EQ(refused.status, 400) << content;
    EXPECT_NE(refused.body.find("messages[1]"), std::string::npos) << refused.body;
  }
}

TEST_F(ServerTest, AnthropicRefusesInItsShape) {
  const auto refused = [&](const char* name, const Json& value) {
    Json body = Chat("Hi");
    body[name] = value;
    const HttpAnswer answer = Post("/v1/messages", body);
    const Json json = answer.json();
    EXPECT_EQ(json["type"], "error") << answer.body;
    EXPECT_EQ(json["error"]["type"], "invalid_request_error") << answer.body;
    EXPECT_NE(answer.body.find(name), std::string::npos) << answer.body;
    return answer.status;
  };
  EXPECT_EQ(refused("max_tokens", nullptr), 400);
  EXPECT_EQ(refused("max_tokens", 0), 400);
  EXPECT_EQ(refused("temperature", 9), 400);
  EXPECT_EQ(refused("stop_sequences", "text"), 400);
  EXPECT_EQ(refused("system", 5), 400);
  EXPECT_EQ(refused("messages", Json::array()), 400);
  EXPECT_EQ(refused("mcp_servers", Json::array({{{"type", "url"}}})), 400);
  Json body = Chat("Hi");
  body["model"] = "other";
  const HttpAnswer other = Post("/v1/messages", body);
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.json()["error"]["type"], "not_found_error");
}

}  // namespace
}  // namespace kvcache::server::anthropic_test
