// API keys and CORS: who is let in, and that users see nothing of each other.
#include "server/api_keys.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/server_testing.h"

namespace kvcache::server::api_keys_test {
namespace {

constexpr const char* kAlice = "alice-0123456789abcdef";
constexpr const char* kBob = "bob-0123456789abcdef00";
constexpr const char* kCarol = "carol-0123456789abcdef";
constexpr const char* kDan = "dan-0123456789abcdef00";
constexpr const char* kRoot = "root-0123456789abcdef0";

std::string Message(std::string_view text) {
  const auto keys = ApiKeys::Parse(text, "keys");
  return keys.ok() ? "" : std::string(keys.status().message());
}

TEST(ApiKeysTest, ReadsUsers) {
  const auto keys = ApiKeys::Parse(
      "# users\n\n  0123456789abcdef name=alice # the first\n0123456789abcdeg group=g\r\n"
      "0123456789abcdeh\tgroup=g admin",
      "keys");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->size(), 3u);
  const User alice = *keys->Find("0123456789abcdef");
  const User second = *keys->Find("0123456789abcdeg");
  const User third = *keys->Find("0123456789abcdeh");
  EXPECT_EQ(alice.name, "alice");
  EXPECT_NE(alice.salt, 0u);
  EXPECT_NE(alice.salt, second.salt);
  EXPECT_EQ(second.salt, third.salt);
  EXPECT_FALSE(second.is_admin);
  EXPECT_TRUE(third.is_admin);
  EXPECT_EQ(keys->Find("0123456789abcde"), nullptr);
  EXPECT_EQ(keys->Find(""), nullptr);
  // Prefixes in a store are found after a restart.
  EXPECT_EQ(ApiKeys::Parse("0123456789abcdef", "other")->Find("0123456789abcdef")->salt,
            alice.salt);
}

TEST(ApiKeysTest, ErrorsNameTheLineAndNoKey) {
  EXPECT_EQ(Message(""), "keys: there is no key in it");
  EXPECT_EQ(Message("# nothing\n"), "keys: there is no key in it");
  EXPECT_EQ(Message("0123456789abcdef\nshort"),
            "keys, line 2: the key has 5 characters; must have 16 to 256");
  EXPECT_EQ(Message("0123456789abcdef\n\n0123456789abcdef"), "keys, line 3: the key occurs twice");
  EXPECT_EQ(Message("0123456789abcde\x01"),
            "keys, line 1: the key must be of visible ASCII characters");
  EXPECT_EQ(Message("0123456789abcdef admn"),
            "keys, line 1: word 2 must be admin, name=… or group=…");
  EXPECT_EQ(Message("0123456789abcdef admin name="),
            "keys, line 1: word 3 must be admin, name=… or group=…");
}

TEST(ApiKeysTest, OthersMustNotReadTheFile) {
  const std::string path = ::testing::TempDir() + "api_keys." + std::to_string(getpid());
  std::ofstream(path) << "0123456789abcdef\n";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(ApiKeys::Read(path).status().message(),
            path + ": other users can read the keys; 'chmod 600' protects them");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(ApiKeys::Read(path).ok());
  std::filesystem::remove(path);
  EXPECT_EQ(ApiKeys::Read(path).status().message(), path + ": No such file or directory");
}

class UsersTest : public ServerTest {
 protected:
  void SetUp() override {
    Start({.http = {.allowed_origins = {"https://chat.example"}},
           .keys = *ApiKeys::Parse(StrCat(kAlice, "\n", kBob, "\n", kCarol, " group=g\n", kDan,
                                          " group=g\n", kRoot, " admin\n"),
                                   "keys")});
  }

  HttpAnswer As(const std::string& key, const std::string& method, const std::string& path,
                const std::string& body = "", bool bearer = true) {
    Client client(server_->port());
    client.Write(StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                        key.empty() ? ""
                        : bearer    ? StrCat("Authorization: Bearer ", key, "\r\n")
                                    : StrCat("X-Api-Key: ", key, "\r\n"),
                        "Content-Length: ", body.size(), "\r\n\r\n", body));
    return Parse(client.Read());
  }
};

TEST_F(UsersTest, RequestsNeedAKey) {
  for (const char* key : {"", "alice-0123456789abcdeX"}) {
    const HttpAnswer openai = As(key, "GET", "/v1/models");
    EXPECT_EQ(openai.status, 401);
    EXPECT_EQ(openai.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(openai.body.find("0123456789"), std::string::npos);
    const HttpAnswer anthropic = As(key, "POST", "/v1/messages", "{}", false);
    EXPECT_EQ(anthropic.status, 401);
    EXPECT_EQ(anthropic.json()["error"]["type"], "authentication_error");
    EXPECT_EQ(As(key, "POST", "/api/chat", "{}").status, 401);
    EXPECT_EQ(As(key, "GET", "/metrics").status, 401);
    EXPECT_EQ(As(key, "GET", "/health").status, 200);
    EXPECT_EQ(As(key, "GET", "/no-such-route").status, 401);
  }
  EXPECT_EQ(As(kAlice, "GET", "/v1/models").status, 200);
  EXPECT_EQ(As(kAlice, "GET", "/v1/models", "", false).status, 200);
  EXPECT_EQ(As(kAlice, "GET", "/metrics").status, 403);
  EXPECT_EQ(As(kRoot, "GET", "/metrics").status, 200);
}

// No route tells a user what another one asked.
TEST_F(UsersTest, UsersShareNothing) {
  const std::string text =
      "Once upon a time Mia had a red ball and Otto had a green kite and they went to the lake.";
  const auto cached = [&](const char* key) {
    const HttpAnswer answer =
        As(key, "POST", "/v1/completions",
           Json({{"prompt", text}, {"max_tokens", 2}, {"temperature", 0}}).dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  const auto probed = [&](const char* key) {
    const HttpAnswer answer = As(key, "POST", "/probe", Json({{"prompt", text}}).dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached(kAlice), 0);
  EXPECT_GT(cached(kAlice), 10);
  EXPECT_GT(probed(kAlice), 10);
  for (const char* other : {kBob, kCarol, kRoot}) {
    EXPECT_EQ(probed(other), 0);
    EXPECT_EQ(As(other, "POST", "/probe", Json({{"prompt", text + " More."}}).dump())
                  .json()["difference"],
              Json());
    EXPECT_EQ(cached(other), 0);
  }
  EXPECT_GT(cached(kDan), 10) << "of the same group as Carol";
  const auto ollama = [&](const char* key) {
    const HttpAnswer answer = As(key, "POST", "/api/generate",
                                 Json({{"prompt", "The lake was blue and the sun was warm today."},
                                       {"raw", true},
                                       {"stream", false},
                                       {"options", {{"num_predict", 2}}}})
                                     .dump());
    return answer.json()["prompt_eval_cached_count"].get<int>();
  };
  EXPECT_EQ(ollama(kAlice), 1) << "the token that begins each of her texts";
  EXPECT_EQ(ollama(kBob), 1) << "of his own texts";
  EXPECT_GT(ollama(kAlice), 10);
  EXPECT_FALSE(As(kAlice, "GET", "/slots").json().contains("prefix_tokens"));
  EXPECT_TRUE(As(kRoot, "GET", "/slots").json().contains("prefix_tokens"));
}

TEST_F(UsersTest, SlotsShowOnesOwnRequests) {
  Client client(server_->port());
  const std::string body =
      Json({{"prompt", "Once upon a time"}, {"max_tokens", 480}, {"n", 16}, {"stream", true}})
          .dump();
  client.Write(StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: bearer ",
                      kAlice, "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  ASSERT_NE(client.Read("data: ").find("data: "), std::string::npos);
  const auto count = [&](const char* key) {
    return As(key, "GET", "/slots").json()["sequences"].size();
  };
  EXPECT_GT(count(kRoot), 0u);
  EXPECT_EQ(count(kBob), 0u);
  EXPECT_GT(count(kAlice), 0u);
}

TEST_F(UsersTest, ResponsesBelongToTheirUser) {
  const auto first = As(kAlice, "POST", "/v1/responses",
                        Json({{"input", "Hello."}, {"max_output_tokens", 4}}).dump());
  ASSERT_EQ(first.status, 200) << first.body;
  const std::string id = first.json()["id"];
  EXPECT_EQ(As(kAlice, "GET", "/v1/responses/" + id).status, 200);
  for (const char* other : {kBob, kCarol, kRoot}) {
    EXPECT_EQ(As(other, "GET", "/v1/responses/" + id).status, 404);
    EXPECT_EQ(As(other, "DELETE", "/v1/responses/" + id).status, 404);
    const auto next = As(
        other, "POST", "/v1/responses",
        Json({{"input", "And?"}, {"previous_response_id", id}, {"max_output_tokens", 4}}).dump());
    EXPECT_EQ(next.status, 400);
    EXPECT_EQ(next.json()["error"]["code"], "previous_response_not_found");
  }
  EXPECT_EQ(As(kAlice, "DELETE", "/v1/responses/" + id).status, 200);
}

TEST_F(UsersTest, PagesOfAllowedOriginsMayRead) {
  const auto ask = [&](const std::string& method, const std::string& origin,
                       const std::string& headers = "") {
    Client client(server_->port());
    client.Write(StrCat(method, " /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                        "Origin: ", origin, "\r\n", headers, "\r\n"));
    return Parse(client.Read());
  };
  const std::string allowed = "https://chat.example";
  const HttpAnswer preflight =
      ask("OPTIONS", allowed, "Access-Control-Request-Headers: authorization, content-type\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_NE(preflight.head.find("Access-Control-Allow-Origin: https://chat.example\r\n"),
            std::string::npos);
  EXPECT_NE(preflight.head.find("Access-Control-Allow-Headers: authorization, content-type\r\n"),
            std::string::npos);
  const HttpAnswer refused = ask("GET", allowed);
  EXPECT_EQ(refused.status, 401);
  EXPECT_NE(refused.head.find("Access-Control-Allow-Origin: https://chat.example\r\n"),
            std::string::npos)
      << "a page may read errors";
  for (const char* other : {"https://evil.example", "null", "https://chat.example.evil.example"}) {
    EXPECT_NE(ask("OPTIONS", other).status, 204);
    EXPECT_EQ(ask("GET", other).head.find("Access-Control"), std::string::npos);
  }
  const HttpAnswer known = ask("GET", allowed, StrCat("Authorization: Bearer ", kAlice, "\r\n"));
  EXPECT_EQ(known.status, 200);
  EXPECT_NE(known.head.find("Vary: Origin\r\n"), std::string::npos);
}

}  // namespace
}  // namespace kvcache::server::api_keys_test
