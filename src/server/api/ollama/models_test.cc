// Tests the routes that load models, let them go, and change their list.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api/ollama/models.h"
#include "server/server_testing.h"

namespace kvcache::server::models_test {
namespace {

TEST(KeepAliveTest, ReadsNumbersAndDurations) {
  const auto read = [](const Json& value) {
    return *ollama::ReadKeepAlive({{"keep_alive", value}});
  };
  EXPECT_FALSE(ollama::ReadKeepAlive(Json::object())->has_value());
  EXPECT_FALSE(read(nullptr).has_value());
  EXPECT_EQ(read(0), 0.0);
  EXPECT_EQ(read(1.5), 1.5);
  EXPECT_EQ(read(-1), kForever);
  EXPECT_EQ(read("0"), 0.0);
  EXPECT_EQ(read("90"), 90.0);
  EXPECT_EQ(read("5m"), 300.0);
  EXPECT_EQ(read("1h30m"), 5400.0);
  EXPECT_EQ(read("1.5h"), 5400.0);
  EXPECT_EQ(read("250ms"), 0.25);
  EXPECT_EQ(read("-1m"), kForever);
  EXPECT_EQ(read("-1"), kForever);
  EXPECT_EQ(read("0s"), 0.0);
  const auto refused = [](const Json& value) {
    return ollama::ReadKeepAlive({{"keep_alive", value}}).status().code() ==
           StatusCode::kInvalidArgument;
  };
  for (const char* text :
       {"", "-", "m", "5 m", "5x", "5m3", "1h30", "abc", "1e5s", "--5m", "5m-3s"}) {
    EXPECT_TRUE(refused(text)) << text;
  }
  EXPECT_TRUE(refused(true));
  EXPECT_TRUE(refused(Json::array({1})));
}

class OllamaModelsTest : public ServerTest {
 protected:
  int Running() const { return static_cast<int>(Get("/api/ps").json()["models"].size()); }
  bool BecomesUnloaded() const {
    for (int i = 0; i < 400 && Running() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return Running() == 0;
  }
  HttpAnswer From(const std::string& origin, const std::string& method, const std::string& path,
                  const std::string& body) const {
    return Raw(StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                      origin.empty() ? "" : StrCat("Origin: ", origin, "\r\n"),
                      "Content-Length: ", body.size(), "\r\n\r\n", body));
  }
};

TEST_F(OllamaModelsTest, LoadsAndLetsGo) {
  EXPECT_EQ(Running(), 1);
  for (const char* path : {"/api/generate", "/api/chat"}) {
    SCOPED_TRACE(path);
    HttpAnswer answer = Post(path, Json({{"model", "story"}, {"keep_alive", 0}}));
    EXPECT_EQ(answer.json()["done_reason"], "unload");
    EXPECT_TRUE(BecomesUnloaded());
    EXPECT_EQ(Get("/state").json()["model"], Json());
    EXPECT_EQ(Get("/slots").json()["sequences"], Json::array());
    EXPECT_EQ(Get("/metrics").status, 200);
    EXPECT_EQ(Get("/v1/models").json()["data"].size(), 1u);
    answer = Post(path, Json({{"model", "story"}, {"prompt", ""}, {"messages", Json::array()}}));
    EXPECT_EQ(answer.json()["done_reason"], "load");
    EXPECT_EQ(answer.json()["done"], true);
    EXPECT_EQ(Running(), 1);
  }
  // A request that ends lets go as well, and the next one loads.
  Json chat = Chat("Hello");
  chat["keep_alive"] = 0;
  EXPECT_EQ(Post("/api/chat", chat).status, 200);
  EXPECT_TRUE(BecomesUnloaded());
  EXPECT_FALSE(ChatText(Chat("Hello")).empty());
  EXPECT_EQ(Running(), 1);
}

TEST_F(OllamaModelsTest, RefusesWrongValues) {
  Json chat = Chat("Hello");
  chat["keep_alive"] = "soon";
  const HttpAnswer answer = Post("/api/chat", chat);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, ::testing::HasSubstr("'keep_alive' must be a number of seconds"));
  EXPECT_EQ(Post("/api/show", Json({{"model", 3}})).status, 400);
  EXPECT_EQ(Post("/api/generate", Json({{"model", "other"}})).status, 404);
  EXPECT_EQ(Post("/api/copy", Json({{"source", "story"}})).status, 400);
  EXPECT_EQ(Post("/api/create", Json({{"model", "new"}})).status, 400);
  EXPECT_EQ(Post("/api/delete", Json({{"model", "story"}})).status, 405);
}

// This server has one model, which nobody can change.
TEST_F(OllamaModelsTest, TheListIsForThisMachine) {
  const std::string body = Json({{"model", "new"}, {"from", "story"}}).dump();
  EXPECT_EQ(From("", "POST", "/api/create", body).status, 400);
  EXPECT_EQ(From("http://localhost", "POST", "/api/create", body).status, 400);
  const HttpAnswer foreign = From("https://evil.example", "POST", "/api/create", body);
  EXPECT_EQ(foreign.status, 403);
  EXPECT_THAT(foreign.body, ::testing::HasSubstr("may change the list"));
  EXPECT_EQ(From("https://evil.example", "DELETE", "/api/delete", body).status, 403);
  const std::string admin = "root-0123456789abcdef";
  const std::string user = "alice-0123456789abcdef";
  Start({.keys = *ApiKeys::Parse(StrCat(admin, " admin\n", user, "\n"), "keys")});
  const auto as = [&](const std::string& key) {
    return Raw(StrCat("POST /api/create HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                      "Authorization: Bearer ", key, "\r\nContent-Length: ", body.size(),
                      "\r\n\r\n", body))
        .status;
  };
  EXPECT_EQ(as(user), 403);
  EXPECT_EQ(as(admin), 400);
}

// What a description of a model says is the same on every route.
TEST_F(OllamaModelsTest, DescriptionsHoldOnEveryRoute) {
  server_.reset();
  ServedModel model{.name = "pirate", .system = "You are a pirate."};
  model.messages.push_back({{"role", "user"}, {"content", "Who are you?"}});
  model.messages.push_back({{"role", "assistant"}, {"content", "A pirate."}});
  model.parameters = {{"temperature", 0}, {"num_predict", 5}};
  auto server = Server::Start(*engine_, model, {});
  ASSERT_TRUE(server.ok()) << server.status().message();
  server_ = std::move(*server);
  const Json user = {{"role", "user"}, {"content", "Hello"}};
  const std::string prompt = Post("/apply-template", Json({{"messages", Json::array({user})}}))
                                 .json()["prompt"]
                                 .get<std::string>();
  EXPECT_THAT(prompt, ::testing::HasSubstr("You are a pirate.\nWho are you?A pirate.\nHello"));
  const std::size_t tokens = Post("/tokenize", Json({{"content", prompt}})).json()["tokens"].size();
  Json chat = {{"messages", Json::array({user})}, {"max_tokens", 5}, {"stream", false}};
  const HttpAnswer openai = Post("/v1/chat/completions", chat);
  const std::string text = openai.json()["choices"][0]["message"]["content"].get<std::string>();
  EXPECT_NEAR(openai.json()["usage"]["prompt_tokens"].get<double>(), double(tokens), 1.0);
  EXPECT_EQ(Post("/v1/messages", chat).json()["content"][0]["text"], text);
  const HttpAnswer ollama = Post("/api/chat", chat);
  EXPECT_EQ(ollama.json()["message"]["content"], text);
  EXPECT_EQ(ollama.json()["eval_count"], 5);
  chat.erase("max_tokens");  // the description has a limit
  EXPECT_EQ(Post("/v1/chat/completions", chat).json()["usage"]["completion_tokens"], 5);
  chat["input"] = chat["messages"];
  EXPECT_EQ(Post("/v1/responses", chat).json()["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(Post("/v1/messages/count_tokens", chat).json()["input_tokens"],
            openai.json()["usage"]["prompt_tokens"]);
  EXPECT_EQ(
      Post("/api/generate", Json({{"prompt", "Hello"}, {"stream", false}})).json()["response"],
      text);
}

}  // namespace
}  // namespace kvcache::server::models_test
