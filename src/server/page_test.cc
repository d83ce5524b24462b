// The page's files and what /state says: one's own prefixes, sequences and requests.
#include "server/api_keys.h"
#include "server/server_testing.h"

namespace kvcache::server {
namespace {

class PageTest : public ServerTest {
 protected:
  static Json Completion(const std::string& prompt) {
    return {{"prompt", prompt}, {"max_tokens", 3}, {"temperature", 0}};
  }
  static const Json* NodeWith(const Json& state, const std::string& text) {
    for (const Json& node : state["nodes"]) {
      if (node["text"].get<std::string>().find(text) != std::string::npos) return &node;
    }
    return nullptr;
  }
};

TEST_F(PageTest, FilesMayRunNoForeignScript) {
  const HttpAnswer page = Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.head.find("Content-Type: text/html; charset=utf-8"), std::string::npos);
  EXPECT_NE(page.head.find("default-src 'none'; script-src 'self'"), std::string::npos);
  EXPECT_NE(page.body.find("/page.js"), std::string::npos);
  EXPECT_EQ(page.body.find("http:"), std::string::npos) << "asks no other host";
  for (const auto& [path, type] :
       {std::pair("/page.css", "text/css"), std::pair("/page.js", "text/javascript")}) {
    const HttpAnswer file = Get(path);
    EXPECT_EQ(file.status, 200);
    EXPECT_NE(file.head.find(type), std::string::npos);
    EXPECT_GT(file.body.size(), 1000u);
  }
}

TEST_F(PageTest, StateShowsWherePromptsFork) {
  EXPECT_EQ(Get("/state").json()["nodes"], Json::array());
  EXPECT_EQ(Post("/v1/completions", Completion("Mia had a red ball. Otto ran.")).status, 200);
  EXPECT_EQ(Post("/v1/completions", Completion("Mia had a red ball. Ivy sang.")).status, 200);
  const Json state = Get("/state").json();
  const Json* const shared = NodeWith(state, "red ball");
  const Json* const first = NodeWith(state, "ran");
  const Json* const second = NodeWith(state, "sang");
  ASSERT_TRUE(shared && first && second) << state.dump();
  EXPECT_EQ((*shared)["begin"], 0);
  EXPECT_EQ((*first)["parent"], (*shared)["id"]);
  EXPECT_EQ((*second)["parent"], (*shared)["id"]);
  EXPECT_EQ((*second)["begin"], (*shared)["end"]);
  ASSERT_EQ(state["ended"].size(), 2u);
  EXPECT_EQ(state["ended"][0]["cached_tokens"], 0);
  EXPECT_EQ(state["ended"][1]["cached_tokens"], (*shared)["end"]);
  EXPECT_EQ(state["ended"][1]["tiers"]["live"], (*shared)["end"]);
  EXPECT_EQ(state["totals"]["requests"], 2);
  EXPECT_EQ(state["totals"]["generated_tokens"], 6);
}

TEST_F(PageTest, StateIsBoundedAndOnesOwn) {
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(Post("/v1/completions", Completion(StrCat(i, " stories"))).status, 200);
  }
  EXPECT_EQ(Get("/state").json()["ended"].size(), 64u);
  Start({.keys = *ApiKeys::Parse("alice-0123456789abcdef\nbob-0123456789abcdef00\n", "keys")});
  const auto as = [&](const char* key, const std::string& request, const std::string& body) {
    return Raw(StrCat(request, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Api-Key: ",
                      key, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  };
  EXPECT_EQ(
      as("alice-0123456789abcdef", "POST /v1/completions", Completion("Mia had a secret.").dump())
          .status,
      200);
  const Json own = as("alice-0123456789abcdef", "GET /state", "").json();
  EXPECT_NE(NodeWith(own, "secret"), nullptr);
  EXPECT_FALSE(own.contains("totals")) << "they count all users";
  const Json other = as("bob-0123456789abcdef00", "GET /state", "").json();
  EXPECT_EQ(other["nodes"], Json::array());
  EXPECT_EQ(other["ended"], Json::array());
  EXPECT_EQ(Get("/state").status, 401);
  EXPECT_EQ(Get("/").status, 200) << "the page asks for a key";
}

TEST_F(PageTest, ProbesCanHavePieces) {
  const HttpAnswer probe =
      Post("/probe", Json({{"prompt", "Mia had a red ball."}, {"with_pieces", true}}));
  EXPECT_EQ(probe.status, 200);
  const Json json = probe.json();
  EXPECT_EQ(json["pieces"].size(), json["prompt_tokens"]);
  std::string text;
  for (const Json& piece : json["pieces"]) text += piece.get<std::string>();
  EXPECT_NE(text.find("Mia had a red ball."), std::string::npos);
}

}  // namespace
}  // namespace kvcache::server
