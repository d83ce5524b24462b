// The page's files and what /state says: one's own prefixes, sequences and requests.
#include <algorithm>

#include "server/api_keys.h"
#include "server/server_testing.h"

namespace kvcache::server::page_test {
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
  EXPECT_EQ(Post("/page.js", Json::object()).status, 405);
  EXPECT_EQ(Get("/page/page.js").status, 404);
  EXPECT_EQ(Get("/page.css", "HEAD").status, 200);
}

// All files that others of them name are there, and name no other host.
TEST_F(PageTest, ScriptsFindEachOther) {
  std::vector<std::string> paths = {"/page.js"};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const HttpAnswer file = Get(paths[i]);
    ASSERT_EQ(file.status, 200) << paths[i];
    EXPECT_NE(file.head.find("text/javascript"), std::string::npos);
    const std::size_t slash = paths[i].rfind('/');
    for (std::size_t at = file.body.find("from './"); at != std::string::npos;
         at = file.body.find("from './", at + 1)) {
      const std::string name = file.body.substr(at + 8, file.body.find('\'', at + 8) - at - 8);
      const std::string path = paths[i].substr(0, slash + 1) + name;
      if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
    }
    EXPECT_EQ(file.body.find("innerHTML ="), std::string::npos);
  }
  EXPECT_EQ(paths.size(), 7u);
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

TEST_F(PageTest, RequestsSayWhenWhatAndHowLong) {
  const Json before = Get("/state").json();
  EXPECT_EQ(before["ended"], Json::array());
  EXPECT_EQ(before["running"], Json::array());
  EXPECT_EQ(Post("/v1/chat/completions", Chat("Tell me a story.", 5)).status, 200);
  Json streamed = Chat("Tell me more.", 6);
  streamed["stream"] = true;
  streamed["n"] = 2;
  EXPECT_EQ(Post("/v1/chat/completions", streamed).status, 200);
  EXPECT_EQ(Post("/tokenize", Json({{"content", "not in the list"}})).status, 200);
  const Json state = Get("/state").json();
  EXPECT_EQ(state["running"], Json::array());
  ASSERT_EQ(state["ended"].size(), 2u) << state["ended"];
  const Json& first = state["ended"][0];
  EXPECT_EQ(first["route"], "POST /v1/chat/completions");
  EXPECT_EQ(first["model"], "story");
  EXPECT_EQ(first["user"], "");
  EXPECT_EQ(first["state"], "done");
  EXPECT_EQ(first["end"], "length");
  EXPECT_EQ(first["status"], 200);
  EXPECT_EQ(first["error"], "");
  EXPECT_EQ(first["generated_tokens"], 5);
  EXPECT_GT(first["time_ms"], 1600000000000);
  EXPECT_GT(first["first_token_ms"], 0);
  EXPECT_GE(first["total_ms"], first["first_token_ms"]);
  EXPECT_EQ(state["ended"][1]["generated_tokens"], 12) << "of both choices";
  EXPECT_LT(first["id"], state["ended"][1]["id"]);
  EXPECT_LE(first["time_ms"], state["ended"][1]["time_ms"]);
}

TEST_F(PageTest, FailuresAreInTheList) {
  const std::string longer(9000, 'x');
  const std::pair<HttpAnswer, const char*> failures[] = {
      {Post("/v1/chat/completions", std::string("{")), "JSON"},
      {Post("/v1/completions", Completion(longer)), "context"},
      {Post("/v1/messages", Json({{"model", "nobody"}, {"max_tokens", 1}})), "nobody"},
      {Post("/api/chat", Json({{"model", "story"}, {"messages", 5}})), "messages"},
      {Post("/v1/nothing", Json::object()), "no route"},
  };
  const Json ended = Get("/state").json()["ended"];
  ASSERT_EQ(ended.size(), std::size(failures)) << ended;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    EXPECT_EQ(ended[i]["state"], "failed") << ended[i];
    EXPECT_EQ(ended[i]["status"], failures[i].first.status) << ended[i];
    EXPECT_NE(ended[i]["error"].get<std::string>().find(failures[i].second), std::string::npos)
        << ended[i];
    EXPECT_EQ(ended[i]["generated_tokens"], 0);
    EXPECT_EQ(ended[i]["first_token_ms"], Json());
    EXPECT_EQ(ended[i]["prompt_tokens"], Json());
    EXPECT_EQ(ended[i]["end"], Json());
  }
}

TEST_F(PageTest, ClientsThatLeaveAreCancelled) {
  {
    Client client(server_->port());
    Json body = Completion("Once upon a time");
    body["stream"] = true;
    body["max_tokens"] = 450;
    const std::string text = body.dump();
    EXPECT_TRUE(client.Write(StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
                                    "Content-Length: ", text.size(), "\r\n\r\n", text)));
    EXPECT_NE(client.Read("data: ").find("200"), std::string::npos);
    const Json state = Get("/state").json();
    const bool runs = !state["running"].empty();
    const Json& one = runs ? state["running"][0] : state["ended"][0];
    EXPECT_EQ(one["route"], "POST /v1/completions");
    if (runs) {
      EXPECT_TRUE(one["state"] == "generating" || one["state"] == "prompt") << one;
      EXPECT_EQ(one["end"], Json());
    }
  }
  ASSERT_TRUE(BecomesIdle());
  Json ended = Get("/state").json()["ended"];
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0]["state"] == "cancelled" || ended[0]["state"] == "done") << ended[0];
  EXPECT_EQ(Get("/state").json()["running"], Json::array());
}

TEST_F(PageTest, AnotherUsersTextsAreNobodysBusiness) {
  Start({.keys = *ApiKeys::Parse("alice-0123456789abcdef name=alice\n"
                                 "bob-0123456789abcdef00 name=bob\n"
                                 "root-0123456789abcdef0 name=root admin\n",
                                 "keys")});
  const auto as = [&](const char* key, const std::string& request, const std::string& body) {
    return Raw(StrCat(request, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Api-Key: ",
                      key, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  };
  const char* const alice = "alice-0123456789abcdef";
  const Json bad = {{"messages", Json::array({{{"role", "a secret"}, {"content", "x"}}})}};
  (void)as(alice, "POST /v1/completions", Completion("Mia had a red secret. Otto ran.").dump());
  (void)as(alice, "POST /v1/completions", Completion("Mia had a red secret. Ivy sang.").dump());
  EXPECT_EQ(as(alice, "POST /v1/chat/completions", bad.dump()).status, 400);
  const Json own = as(alice, "GET /state", "").json();
  ASSERT_EQ(own["ended"].size(), 3u);
  EXPECT_EQ(own["ended"][1]["user"], "alice");
  EXPECT_NE(own["ended"][1]["difference"], Json());
  EXPECT_NE(own["ended"][2]["error"].get<std::string>().find("secret"), std::string::npos);
  EXPECT_FALSE(own.contains("memory"));
  EXPECT_EQ(as("bob-0123456789abcdef00", "GET /state", "").json()["ended"], Json::array());
  const HttpAnswer seen = as("root-0123456789abcdef0", "GET /state", "");
  const Json all = seen.json();
  ASSERT_EQ(all["ended"].size(), 3u);
  EXPECT_EQ(all["ended"][2]["user"], "alice");
  EXPECT_EQ(all["ended"][2]["status"], 400);
  EXPECT_EQ(seen.body.find("secret"), std::string::npos);
  // Nor is a text read by its number.
  const std::string row = StrCat("GET /state/prefix?from=0&node=", own["nodes"][0]["id"].dump());
  EXPECT_NE(as(alice, row, "").json()["text"].get<std::string>().find("secret"), std::string::npos);
  for (const char* other : {"bob-0123456789abcdef00", "root-0123456789abcdef0"}) {
    EXPECT_EQ(as(other, row, "").json()["length"], 0);
    EXPECT_EQ(as(other, row, "").json()["text"], "");
  }
  EXPECT_EQ(Get("/state/prefix?from=0&node=1").status, 401);
}

TEST_F(PageTest, DifferencesNameTheirPlaceInTheLine) {
  EXPECT_EQ(Post("/v1/completions", Completion("Mia ran.\nOtto had a red ball.\nEnd.")).status,
            200);
  EXPECT_EQ(Post("/v1/completions", Completion("Mia ran.\nOtto had a blue ball.\nEnd.")).status,
            200);
  const Json ended = Get("/state").json()["ended"];
  const Json& difference = ended[1]["difference"];
  EXPECT_EQ(ended[1]["differs_at"], "Otto had a blue ball.");
  EXPECT_EQ(difference["before"], "Otto had a") << difference;
  EXPECT_EQ(difference["prompt"].get<std::string>() + difference["after"].get<std::string>(),
            " blue ball.")
      << difference;
  EXPECT_EQ(difference["prompt"], " blue");
  EXPECT_EQ(difference["cached"], " red");
  // A line that ends earlier.
  EXPECT_EQ(Post("/v1/completions", Completion("Mia ran.\nOtto had a\nball.")).status, 200);
  const Json shorter = Get("/state").json()["ended"][2];
  EXPECT_EQ(shorter["differs_at"], "Otto had a");
  EXPECT_EQ(shorter["difference"]["prompt"], "\n") << shorter["difference"];
  EXPECT_EQ(shorter["difference"]["after"], "");
}

TEST_F(PageTest, PromptThatSharesOnlyItsFirstTokenIsNew) {
  EXPECT_EQ(Post("/v1/completions", Completion("Mia ran.")).status, 200);
  EXPECT_EQ(Post("/v1/completions", Completion("Otto sang.")).status, 200);
  const Json one = Get("/state").json()["ended"][1];
  EXPECT_EQ(one["cached_tokens"], 1) << "the token that begins all texts";
  EXPECT_EQ(one["missed"][0]["reason"], "new") << one;
  EXPECT_EQ(one["difference"], Json());
  EXPECT_EQ(one["differs_at"], "");
}

TEST_F(PageTest, WholeTextsAreRead) {
  std::string text = "Mia had a ball.";
  for (int i = 0; i < 30; ++i) text += StrCat(" Otto saw ", i, " birds.");
  EXPECT_EQ(Post("/v1/completions", Completion(text)).status, 200);
  const Json node = Get("/state").json()["nodes"][0];
  EXPECT_EQ(node["whole"], false);
  EXPECT_EQ(node["text"].get<std::string>().find("Otto saw 15 birds"), std::string::npos);
  const std::string path = StrCat("/state/prefix?model=story&node=", node["id"].dump(), "&from=");
  const Json whole = Get(path + "0").json();
  EXPECT_NE(whole["text"].get<std::string>().find(text), std::string::npos) << whole;
  EXPECT_EQ(whole["length"], node["end"]);
  EXPECT_EQ(whole["end"], node["end"]);
  const Json rest = Get(path + "100").json();
  EXPECT_EQ(rest["from"], 100);
  EXPECT_TRUE(whole["text"].get<std::string>().ends_with(rest["text"].get<std::string>()));
  EXPECT_EQ(Get(path + "999999").json()["text"], "");
  for (const char* wrong :
       {"/state/prefix", "/state/prefix?node=1", "/state/prefix?node=x&from=0",
        "/state/prefix?node=1&from=-1", "/state/prefix?node=1&from=99999999999"}) {
    EXPECT_EQ(Get(wrong).status, 400) << wrong;
  }
  EXPECT_EQ(Get("/state/prefix?model=other&node=1&from=0").status, 404);
}

TEST_F(PageTest, StateIsOfTheModelThatIsAskedFor) {
  EXPECT_EQ(Post("/v1/completions", Completion("Mia ran.")).status, 200);
  const Json named = Get("/state?model=story").json();
  EXPECT_EQ(named["model"], "story");
  EXPECT_EQ(named["models"], Json::array({"story"}));
  EXPECT_EQ(named["nodes"].size(), 1u);
  const Json other = Get("/state?model=a%20model%2Fthat:left").json();
  EXPECT_EQ(other["model"], Json());
  EXPECT_EQ(other["models"], Json::array({"story"}));
  EXPECT_EQ(other["nodes"], Json::array());
  EXPECT_EQ(other["ended"].size(), 1u) << "requests are those of all models";
  EXPECT_EQ(other["totals"]["requests"], 1);
}

TEST_F(PageTest, MemoryHasItsBudget) {
  Start({.memory_budget = std::int64_t{64} << 20});
  EXPECT_EQ(Post("/v1/completions", Completion("Mia ran.")).status, 200);
  const Json state = Get("/state").json();
  const Json& live = state["memory"][0];
  EXPECT_EQ(live["tier"], "live");
  EXPECT_EQ(live["model"], "story");
  EXPECT_GT(live["held_bytes"], 0);
  EXPECT_EQ(live["budget_bytes"], std::int64_t{64} << 20);
  EXPECT_EQ(live["evicted_tokens"], 0);
  for (const char* name : {"waiting", "parked", "running", "evicted_tokens"}) {
    EXPECT_EQ(state["totals"][name], 0) << name;
  }
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
}  // namespace kvcache::server::page_test
