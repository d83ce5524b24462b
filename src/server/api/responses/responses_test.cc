// The responses of OpenAI, their events, and going on from them.
#include <string>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::responses_test {
namespace {

Json Request(const Json& input, int max = 24) {
  return {{"model", "story"}, {"input", input}, {"max_output_tokens", max}, {"temperature", 0}};
}

Json Message(const char* role, const std::string& text) {
  return {{"role", role}, {"content", text}};
}

std::string OutputText(const Json& response) {
  std::string text;
  for (const Json& item : response["output"]) {
    if (item["type"] != "message") continue;
    for (const Json& part : item["content"]) text += part["text"].get<std::string>();
  }
  return text;
}

// Returns the names of the events; each of a row of the same is named once.
std::vector<std::string> Names(const std::vector<std::pair<std::string, Json>>& events) {
  std::vector<std::string> names;
  for (const auto& [name, data] : events) {
    const std::string place =
        data.contains("output_index") ? StrCat(name, " ", data["output_index"].get<int>()) : name;
    if (names.empty() || names.back() != place) names.push_back(place);
  }
  return names;
}

TEST_F(ServerTest, ResponsesHaveTheTextsOfChats) {
  const std::string expected = ChatText(Chat("Tell me of a bee."));
  const Json whole = Post("/v1/responses", Request("Tell me of a bee.")).json();
  EXPECT_EQ(OutputText(whole), expected) << whole;
  EXPECT_EQ(whole["object"], "response");
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(whole["error"], nullptr);
  EXPECT_EQ(whole["output"][0]["role"], "assistant");
  EXPECT_EQ(whole["output"][0]["status"], "incomplete");
  const int prompt = Post("/v1/messages/count_tokens", Chat("Tell me of a bee."))
                         .json()["input_tokens"]
                         .get<int>();
  EXPECT_EQ(whole["usage"], Json({{"input_tokens", prompt},
                                  {"input_tokens_details", {{"cached_tokens", prompt - 1}}},
                                  {"output_tokens", 24},
                                  {"output_tokens_details", {{"reasoning_tokens", 0}}},
                                  {"total_tokens", prompt + 24}}));
  const Json parts = Json::array({Json({{"type", "input_text"}, {"text", "Tell me "}}),
                                  Json({{"type", "input_text"}, {"text", "of a bee."}})});
  const Json items =
      Json::array({Json({{"type", "unheard_of"}, {"role", 5}}),
                   Json({{"type", "message"}, {"role", "user"}, {"content", parts}})});
  EXPECT_EQ(OutputText(Post("/v1/responses", Request(items)).json()), expected);
  Json instructed = Request("Tell me of a bee.");
  instructed["instructions"] = "Be kind.";
  Json chat = Chat("Tell me of a bee.");
  chat["messages"] =
      Json::array({Message("system", "Be kind."), Message("user", "Tell me of a bee.")});
  EXPECT_EQ(OutputText(Post("/v1/responses", instructed).json()), ChatText(chat));
  EXPECT_EQ(Post("/v1/responses/input_tokens", Request("Tell me of a bee.")).json()["input_tokens"],
            prompt);
}

TEST_F(ServerTest, ResponsesHaveTypedEvents) {
  Json body = Request("Tell me of an ox.");
  body["stream"] = true;
  const auto events = NamedEvents(Post("/v1/responses", body).body);
  EXPECT_EQ(Names(events),
            (std::vector<std::string>{
                "response.created", "response.in_progress", "response.output_item.added 0",
                "response.content_part.added 0", "response.output_text.delta 0",
                "response.output_text.done 0", "response.content_part.done 0",
                "response.output_item.done 0", "response.incomplete"}));
  std::string text;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& [name, data] = events[i];
    EXPECT_EQ(data["type"], name);
    EXPECT_EQ(data["sequence_number"], i);
    if (name == "response.output_text.delta") text += data["delta"].get<std::string>();
    if (name == "response.output_text.done") {
      EXPECT_EQ(data["text"], text);
    }
  }
  EXPECT_EQ(text, ChatText(Chat("Tell me of an ox.")));
  const Json& last = events.back().second["response"];
  EXPECT_EQ(OutputText(last), text);
  EXPECT_EQ(events.front().second["response"]["id"], last["id"]);
  EXPECT_EQ(events.front().second["response"]["status"], "in_progress");
  EXPECT_EQ(events[events.size() - 2].second["item"], last["output"][0]);
  EXPECT_EQ(Get("/v1/responses/" + last["id"].get<std::string>()).json(), last);
}

TEST_F(ServerTest, AResponseGoesOnFromAnother) {
  Json first = Request("Tell me of a cow.");
  first["instructions"] = "Be kind.";
  const Json one = Post("/v1/responses", first).json();
  const std::string id = one["id"].get<std::string>();
  Json second = Request("And a calf?");
  second["previous_response_id"] = id;
  const Json two = Post("/v1/responses", second).json();
  EXPECT_EQ(two["previous_response_id"], id);
  Json chat = Chat("");
  chat["messages"] =
      Json::array({Message("user", "Tell me of a cow."), Message("assistant", OutputText(one)),
                   Message("user", "And a calf?")});
  EXPECT_EQ(OutputText(two), ChatText(chat)) << "instructions are not carried over";
  // An item can be named instead of repeated.
  const Json reference = {{"type", "item_reference"}, {"id", one["output"][0]["id"]}};
  const Json items = Json::array(
      {Message("user", "Tell me of a cow."), reference, Message("user", "And a calf?")});
  EXPECT_EQ(OutputText(Post("/v1/responses", Request(items)).json()), OutputText(two));

  EXPECT_EQ(Get("/v1/responses/" + id).json(), one);
  const Json gone = Get("/v1/responses/" + id, "DELETE").json();
  EXPECT_EQ(gone, Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(Get("/v1/responses/" + id).status, 404);
  EXPECT_EQ(Get("/v1/responses/" + id, "DELETE").status, 404);
  const HttpAnswer unknown = Post("/v1/responses", second);
  EXPECT_EQ(unknown.status, 400);
  EXPECT_EQ(unknown.json()["error"]["param"], "previous_response_id");
  EXPECT_EQ(Post("/v1/responses", Request(items)).status, 404);
  // The second response has the conversation of the first.
  second["previous_response_id"] = two["id"];
  EXPECT_EQ(Post("/v1/responses", second).status, 200);
  first["store"] = false;
  const std::string unstored = Post("/v1/responses", first).json()["id"].get<std::string>();
  EXPECT_EQ(Get("/v1/responses/" + unstored).status, 404);
  second["previous_response_id"] = unstored;
  EXPECT_EQ(Post("/v1/responses", second).status, 400);
}

TEST_F(ServerTest, ResponsesReadWhatCodexSends) {
  Json body = Request(Json::array({Message("developer", "Be brief."), Message("user", "Hi")}), 4);
  body.update(
      {{"client_metadata", {{"x", "y"}}},
       {"include", Json::array({"reasoning.encrypted_content"})},
       {"instructions", "You code."},
       {"parallel_tool_calls", false},
       {"prompt_cache_key", "k"},
       {"reasoning", {{"effort", "low"}, {"summary", "auto"}}},
       {"store", false},
       {"stream", true},
       {"tool_choice", "auto"},
       {"tools", Json::array({Json({{"type", "web_search"}}), Json({{"type", "local_shell"}})})},
       {"metadata", {{"a", "b"}}}});
  const auto events = NamedEvents(Post("/v1/responses", body).body);
  ASSERT_FALSE(events.empty());
  const Json& response = events.back().second["response"];
  for (const char* name : {"instructions", "parallel_tool_calls", "prompt_cache_key", "store",
                           "tool_choice", "tools", "metadata"}) {
    EXPECT_EQ(response[name], body[name]) << name;
  }
  Json chat = Chat("", 4);
  chat["messages"] = Json::array(
      {Message("system", "You code."), Message("system", "Be brief."), Message("user", "Hi")});
  EXPECT_EQ(OutputText(response), ChatText(chat));
}

TEST_F(ServerTest, ResponsesRefuseByName) {
  const auto refused = [&](const char* name, const Json& value, const char* param) {
    Json body = Request("Hi", 2);
    body[name] = value;
    const HttpAnswer answer = Post("/v1/responses", body);
    EXPECT_EQ(answer.status, 400) << name << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], param) << answer.body;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  };
  refused("text", {{"format", {{"type", "json"}}}}, "text.format");
  refused("text", {{"format", 5}}, "text.format");
  refused("text", 5, "text");
  refused("max_output_tokens", 0, "max_output_tokens");
  refused("temperature", 9, "temperature");
  refused("store", "yes", "store");
  refused("metadata", {{"a", 5}}, "metadata");
  refused("include", "x", "include");
  refused("reasoning", "high", "reasoning");
  refused("client_metadata", 5, "client_metadata");
  refused("background", true, "background");
  refused("instructions", Json::array(), "instructions");
  refused("previous_response_id", "resp_none", "previous_response_id");
  for (const Json& input :
       {Json(nullptr), Json(5), Json::array(), Json::array({5}), Json::array({Json::object()}),
        Json::array({Message("other", "x")}),
        Json::array({Json({{"role", "user"}, {"content", 5}})}),
        Json::array({Json({{"type", "function_call"}, {"name", "x"}})}),
        Json::array({Json({{"type", "function_call_output"}, {"call_id", "c"}})})}) {
    refused("input", input, "input");
  }
  Json body = Request("Hi");
  body["model"] = "other";
  EXPECT_EQ(Post("/v1/responses", body).status, 404);
  std::string longer;
  for (int i = 0; i < 600; ++i) longer += "Tell me more. ";
  const Json error = Post("/v1/responses", Request(longer)).json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "input");
  const HttpAnswer put = Get("/v1/responses", "GET");
  EXPECT_EQ(put.status, 405);
}

}  // namespace
}  // namespace kvcache::server::responses_test
