// Stored responses: their events, their input, their end, and the summary of a conversation.
#include <string>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::stored_test {
namespace {

Json Request(const Json& input, int max = 8) {
  return {{"model", "story"}, {"input", input}, {"max_output_tokens", max}, {"temperature", 0}};
}

Json Message(const char* role, const std::string& text) {
  return {{"role", role}, {"content", text}};
}

std::string IdOf(const Json& response) {
  return response["id"].get<std::string>();
}

std::string Path(const Json& response, const std::string& rest = "") {
  return "/v1/responses/" + IdOf(response) + rest;
}

TEST_F(ServerTest, AStoredResponseIsStreamedAgain) {
  Json body = Request("Tell me of an owl.");
  body["stream"] = true;
  const auto live = NamedEvents(Post("/v1/responses", body).body);
  ASSERT_GT(live.size(), 9);
  const Json response = live.back().second["response"];
  const HttpAnswer again = Get(Path(response, "?stream=true&include_obfuscation=false"));
  EXPECT_NE(again.head.find("text/event-stream"), std::string::npos);
  EXPECT_EQ(NamedEvents(again.body), live);
  // A client goes on behind any event that it has.
  for (std::size_t after = 0; after < live.size(); ++after) {
    const HttpAnswer rest = Get(Path(response, StrCat("?stream=true&starting_after=", after)));
    EXPECT_EQ(rest.status, 200) << after;
    EXPECT_EQ(NamedEvents(rest.body),
              decltype(live)(live.begin() + static_cast<std::ptrdiff_t>(after) + 1, live.end()))
        << after;
  }
  for (const std::size_t beyond : {live.size(), live.size() + 100}) {
    const HttpAnswer refused = Get(Path(response, StrCat("?stream=true&starting_after=", beyond)));
    EXPECT_EQ(refused.status, 400) << beyond;
    EXPECT_EQ(refused.json()["error"]["param"], "starting_after") << refused.body;
  }
  EXPECT_EQ(Get(Path(response, "?stream=false")).json(), response);
  EXPECT_EQ(Get(Path(response, "?stream=maybe")).json()["error"]["param"], "stream");
  EXPECT_EQ(Get(Path(response, "?stream=true&starting_after=x")).json()["error"]["param"],
            "starting_after");
}

// A response that was not streamed has events too: each text in one piece.
TEST_F(ServerTest, AStoredResponseIsStreamed) {
  const Json response = Post("/v1/responses", Request("Tell me of an owl.")).json();
  const auto events = NamedEvents(Get(Path(response, "?stream=true")).body);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < events.size(); ++i) {
    names.push_back(events[i].first);
    EXPECT_EQ(events[i].second["sequence_number"], i);
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "response.created", "response.in_progress", "response.output_item.added",
                       "response.content_part.added", "response.output_text.delta",
                       "response.output_text.done", "response.content_part.done",
                       "response.output_item.done", "response.incomplete"}));
  EXPECT_EQ(events[4].second["delta"], response["output"][0]["content"][0]["text"]);
  EXPECT_EQ(events.back().second["response"], response);
}

TEST_F(ServerTest, TheInputOfAResponseIsListed) {
  const Json items = Json::array(
      {Message("user", "One."), Message("assistant", "Two."),
       Json({{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}}),
       Json({{"type", "function_call_output"}, {"call_id", "c"}, {"output", "3"}, {"id", "own"}})});
  const Json first = Post("/v1/responses", Request(items)).json();
  const Json list = Get(Path(first, "/input_items?order=asc")).json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["has_more"], false);
  const Json& data = list["data"];
  ASSERT_EQ(data.size(), 4) << list;
  EXPECT_EQ(list["first_id"], data[0]["id"]);
  EXPECT_EQ(list["last_id"], "own");
  EXPECT_EQ(data[0]["type"], "message");
  EXPECT_TRUE(data[0]["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(data[0]["content"], Json::array({Json({{"type", "input_text"}, {"text", "One."}})}));
  EXPECT_EQ(data[1]["content"][0]["type"], "output_text");
  EXPECT_EQ(data[2]["name"], "f");
  // The last one comes first, a page at a time.
  const Json page = Get(Path(first, "/input_items?limit=3")).json();
  EXPECT_EQ(page["first_id"], "own");
  EXPECT_EQ(page["has_more"], true);
  const std::string after = page["last_id"].get<std::string>();
  const Json other = Get(Path(first, "/input_items?limit=3&after=" + after)).json();
  EXPECT_EQ(other["data"], Json::array({data[0]}));
  EXPECT_EQ(other["has_more"], false);
  for (const char* const name : {"limit=0", "limit=101", "limit=x", "order=up", "after=none"}) {
    const HttpAnswer answer = Get(Path(first, StrCat("/input_items?", name)));
    EXPECT_EQ(answer.status, 400) << name;
    EXPECT_TRUE(
        std::string_view(name).starts_with(answer.json()["error"]["param"].get<std::string>()));
  }
  // The conversation of the response before is a part of it.
  Json next = Request("Four.");
  next["previous_response_id"] = IdOf(first);
  const Json longer =
      Get(Path(Post("/v1/responses", next).json(), "/input_items?order=asc")).json()["data"];
  ASSERT_EQ(longer.size(), 6);
  EXPECT_EQ(longer[0], data[0]);
  EXPECT_EQ(longer[4], first["output"][0]);
  EXPECT_EQ(longer[5]["content"][0]["text"], "Four.");
}

TEST_F(ServerTest, RoutesOfResponsesHaveTheirMethods) {
  const Json response = Post("/v1/responses", Request("Hi")).json();
  const HttpAnswer cancel = Get(Path(response, "/cancel"), "POST");
  EXPECT_EQ(cancel.status, 400);
  EXPECT_NE(cancel.body.find("background"), std::string::npos);
  for (const char* const part : {"", "/input_items"}) {
    EXPECT_EQ(Get(StrCat("/v1/responses/resp_none", part)).status, 404);
  }
  EXPECT_EQ(Get("/v1/responses/resp_none/cancel", "POST").status, 404);
  const struct {
    std::string path;
    const char* method;
    const char* allowed;
  } known[] = {{Path(response), "POST", "GET, HEAD, DELETE"},
               {Path(response, "/input_items"), "POST", "GET, HEAD"},
               {Path(response, "/cancel"), "GET", "POST"},
               {"/v1/responses/compact", "GET", "POST"},
               {"/v1/responses/input_tokens", "GET", "POST"},
               {"/v1/responses", "GET", "POST"}};
  for (const auto& [path, method, allowed] : known) {
    const HttpAnswer answer = Get(path, method);
    EXPECT_EQ(answer.status, 405) << path;
    EXPECT_NE(answer.head.find(StrCat("Allow: ", allowed, "\r\n")), std::string::npos)
        << answer.head;
  }
  for (const std::string& path :
       {Path(response, "/other"), Path(response, "/input_items/x"), Path(response, "/"),
        std::string("/v1/responses/"), std::string("/v1/audio"), std::string("/v1/other")}) {
    for (const char* const method : {"GET", "POST", "DELETE"}) {
      EXPECT_EQ(Get(path, method).status, 404) << method << path;
    }
  }
}

TEST_F(ServerTest, ToolsAreRepeatedWithAllTheirKeys) {
  Json body = Request("Hi");
  const Json search = {{"type", "web_search"}};
  body["tools"] = Json::array({search});
  EXPECT_EQ(Post("/v1/responses", body).json()["tools"], body["tools"]);
}

TEST_F(ServerTest, AConversationIsMadeShort) {
  const Json input =
      Json::array({Message("system", "Be kind."), Message("user", "Tell me of a cat."),
                   Message("assistant", "The cat sat."), Message("user", "And?")});
  const Json compact =
      Post("/v1/responses/compact", Json{{"model", "story"}, {"input", input}, {"temperature", 0}})
          .json();
  EXPECT_EQ(compact["object"], "response.compaction") << compact;
  EXPECT_TRUE(compact["created_at"].is_number_integer());
  EXPECT_GT(compact["usage"]["output_tokens"], 0);
  const Json& output = compact["output"];
  ASSERT_EQ(output.size(), 4);
  for (const std::size_t i : {0, 1, 2}) EXPECT_EQ(output[i]["type"], "message");
  EXPECT_EQ(output[2]["content"][0]["text"], "And?");
  EXPECT_EQ(output[3]["type"], "compaction");
  const std::string sealed = output[3]["encrypted_content"];
  EXPECT_GT(sealed.size(), 20);
  // The summary stands for the model's answers.
  Json next = output;
  next.push_back(Message("user", "Go on."));
  Json chat = Chat("", 8);
  chat["messages"] = Json::array(
      {Message("system", "Be kind."), Message("user", "Tell me of a cat.\n\nAnd?"),
       Message("assistant", sealed.substr(sealed.find(':') + 1)), Message("user", "Go on.")});
  EXPECT_EQ(Post("/v1/responses", Request(next)).json()["output"][0]["content"][0]["text"],
            ChatText(chat));
  // One of another server cannot be read.
  next[3]["encrypted_content"] = "gAAAA";
  EXPECT_EQ(Post("/v1/responses", Request(next)).status, 200);
  EXPECT_EQ(Post("/v1/responses/compact", Json{{"model", "story"}}).json()["error"]["param"],
            "input");
  std::string longer;
  for (int i = 0; i < 600; ++i) longer += "Tell me more. ";
  EXPECT_EQ(Post("/v1/responses/compact", Request(longer)).json()["error"]["code"],
            "context_length_exceeded");
}

// Some templates refuse two messages of the same role in a row.
TEST_F(ServerTest, AShortConversationAlternates) {
  server_.reset();
  auto server = Server::Start(
      *engine_,
      {.name = "story",
       .chat_template = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == "
                        "0) %}{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role "
                        "}}>{{ m.content }}</>{% endfor %}"},
      {});
  ASSERT_TRUE(server.ok()) << server.status().message();
  server_ = std::move(*server);
  const Json two = Json::array({Message("user", "One."), Message("user", "Two.")});
  EXPECT_EQ(Post("/v1/responses", Request(two)).status, 400) << "the template wants an answer";
  const Json input =
      Json::array({Message("user", "One."), Message("assistant", "1."), Message("user", "Two."),
                   Message("assistant", "2."), Message("user", "Three.")});
  const Json compact = Post("/v1/responses/compact", Request(input)).json();
  ASSERT_EQ(compact["output"].size(), 4) << compact;
  Json next = compact["output"];
  next.push_back(Message("user", "Four."));
  const Json first = Post("/v1/responses", Request(next)).json();
  EXPECT_EQ(first["object"], "response") << first;
  // It goes on, by its items, by its id, and when it is made short once more.
  Json items = next;
  for (const Json& item : first["output"]) items.push_back(item);
  items.push_back(Message("user", "Five."));
  const Json by_items = Post("/v1/responses", Request(items)).json();
  EXPECT_EQ(by_items["object"], "response") << by_items;
  Json by_id = Request("Five.");
  by_id["previous_response_id"] = IdOf(first);
  EXPECT_EQ(Post("/v1/responses", by_id).json()["output"][0]["content"],
            by_items["output"][0]["content"]);
  Json again = Post("/v1/responses/compact", Request(items)).json()["output"];
  ASSERT_EQ(again.size(), 6) << again;
  again.push_back(Message("user", "Six."));
  EXPECT_EQ(Post("/v1/responses", Request(again)).status, 200);
  // A summary that cannot be read leaves the user's messages side by side.
  next[3]["encrypted_content"] = "gAAAA";
  EXPECT_EQ(Post("/v1/responses", Request(next)).status, 200);
}

}  // namespace
}  // namespace kvcache::server::stored_test
