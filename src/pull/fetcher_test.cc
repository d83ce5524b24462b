#include "pull/fetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/strings.h"
#include "pull/url.h"

namespace kvcache::pull {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers from a table, and remembers who was asked, with the token.
class StandIn final : public HttpClient {
 public:
  struct Answer {
    HttpHead head;
    std::string body;
  };

  Status Get(const HttpRequest& request, const HttpSink& sink) override {
    std::string line = request.url;
    may_reach_this_machine[line] = request.may_reach_this_machine;
    max_seconds[line] = request.max_seconds;
    for (const auto& [name, value] : request.headers) {
      if (name == "Authorization") line += " " + value;
    }
    asked.push_back(line);
    auto found = answers.find(line);
    if (found == answers.end()) found = answers.find(request.url);
    if (found == answers.end()) return sink.on_head({.status = 404});
    KVCACHE_RETURN_IF_ERROR(sink.on_head(found->second.head));
    const auto bytes = std::as_bytes(std::span(found->second.body));
    for (std::size_t at = 0; at < bytes.size(); at += 1000) {
      KVCACHE_RETURN_IF_ERROR(
          sink.on_bytes(bytes.subspan(at, std::min<std::size_t>(1000, bytes.size() - at))));
      sent = at;
    }
    return Status::Ok();
  }

  void Redirect(const std::string& from, const std::string& to) {
    answers[from] = {{.status = 302, .headers = {{"location", to}}}, "moved"};
  }
  void Text(const std::string& url, const std::string& body) {
    answers[url] = {{.status = 200}, body};
  }

  std::map<std::string, Answer> answers;
  std::vector<std::string> asked;
  std::map<std::string, bool> may_reach_this_machine;  // by address
  std::map<std::string, int> max_seconds;
  std::size_t sent = 0;  // of the last body
};

class FetcherTest : public ::testing::Test {
 protected:
  std::string Get(const std::string& url) {
    const auto text = fetcher.GetText(url, {}, 100);
    return text.ok() ? *text : "error: " + text.status().message();
  }

  StandIn server;
  Fetcher fetcher{server};
};

TEST_F(FetcherTest, FollowsRedirects) {
  server.Redirect("https://a.test/x/1", "2?q=1");
  server.Redirect("https://a.test/x/2?q=1", "/3");
  server.Redirect("https://a.test/3", "//b.test/4");
  server.Text("https://b.test/4", "here");
  EXPECT_EQ(Get("https://a.test/x/1"), "here");
  EXPECT_EQ(fetcher.last().host, "b.test");
}

TEST_F(FetcherTest, RefusesRedirects) {
  server.Redirect("https://a.test/plain", "http://a.test/x");
  EXPECT_THAT(Get("https://a.test/plain"),
              HasSubstr("a.test/plain: it redirects from https to http"));
  server.Redirect("https://a.test/here", "https://127.0.0.1:1/x");
  EXPECT_THAT(Get("https://a.test/here"), HasSubstr("to this machine"));
  server.Redirect("https://a.test/file", "file:///etc/passwd");
  EXPECT_THAT(Get("https://a.test/file"), HasSubstr("must begin with http:// or https://"));
  server.Redirect("https://a.test/signed", "s3://user:word@b/x?signature=1");
  EXPECT_THAT(Get("https://a.test/signed"), HasSubstr("the address 's3://b/x' must begin"));
  server.Redirect("https://a.test/1", "/2");
  server.Redirect("https://a.test/2", "/1");
  EXPECT_THAT(Get("https://a.test/1"), HasSubstr("circle"));
  for (int i = 0; i < 20; ++i) {
    server.Redirect(StrCat("https://b.test/", i), StrCat("/", i + 1));
  }
  EXPECT_THAT(Get("https://b.test/0"), HasSubstr("more than 10 redirects"));
}

TEST_F(FetcherTest, TokensStayWithTheirHost) {
  fetcher.UseToken("a.test", "secret");
  server.Redirect("https://a.test/1", "https://b.test/1");
  server.Redirect("https://b.test/1", "https://a.test/2");
  server.Text("https://a.test/2", "here");
  EXPECT_EQ(Get("https://a.test/1"), "here");
  EXPECT_THAT(server.asked, ElementsAre("https://a.test/1 Bearer secret", "https://b.test/1",
                                        "https://a.test/2 Bearer secret"));
  server.asked.clear();
  (void)Get("http://a.test/plain");
  EXPECT_THAT(server.asked, ElementsAre("http://a.test/plain"));  // anybody could read it
}

TEST_F(FetcherTest, TakesATokenThatAnyoneGets) {
  const std::string challenge =
      R"(Bearer realm="https://t.test/token",service="s",scope="r:x:pull")";
  server.answers["https://a.test/1"] = {
      {.status = 401, .headers = {{"www-authenticate", challenge}}}, "no"};
  server.Text("https://t.test/token?service=s&scope=r%3Ax%3Apull", R"({"token":"given"})");
  server.Text("https://a.test/1 Bearer given", "here");
  EXPECT_EQ(Get("https://a.test/1"), "here");
  server.Text("https://t.test/token?service=s&scope=r%3Ax%3Apull", R"({"token":"a\r\nb: c"})");
  fetcher.UseToken("a.test", "old");
  EXPECT_THAT(Get("https://a.test/1"), HasSubstr("its answer has no token"));
}

TEST_F(FetcherTest, OnlyThisMachineAndTheUserLeadToThisMachine) {
  const std::string here = "http://127.0.0.1:1/x";
  for (const char* name : {"LOCALHOST:1", "0.0.0.0:1", "127.1:1", "[::ffff:127.0.0.1]:1"}) {
    server.Redirect("http://a.test/1", std::string("http://") + name + "/x");
    EXPECT_THAT(Get("http://a.test/1"), HasSubstr("to this machine")) << name;
  }
  // A name that resolves to this machine is the client's to refuse.
  server.Redirect("http://a.test/1", "http://b.test/2");
  server.Text("http://b.test/2", "here");
  EXPECT_EQ(Get("http://a.test/1"), "here");
  EXPECT_FALSE(server.may_reach_this_machine["http://a.test/1"]);
  EXPECT_FALSE(server.may_reach_this_machine["http://b.test/2"]);
  // The user's host may be this machine, and then it may lead to others here.
  fetcher.Trust("a.test");
  server.answers["http://a.test/1"].head.from_this_machine = true;
  server.answers["http://a.test/1"].head.headers["location"] = here;
  server.Text(here, "loop");
  EXPECT_EQ(Get("http://a.test/1"), "loop");
  EXPECT_TRUE(server.may_reach_this_machine["http://a.test/1"]);
  EXPECT_TRUE(server.may_reach_this_machine[here]);
}

TEST_F(FetcherTest, AServerElsewhereHasNoTokensFromThisMachine) {
  const std::string challenge = R"(Bearer realm="https://localhost/token",service="s")";
  server.answers["https://a.test/1"] = {
      {.status = 401, .headers = {{"www-authenticate", challenge}}}, "no"};
  EXPECT_THAT(Get("https://a.test/1"), HasSubstr("its realm for tokens is this machine"));
  EXPECT_THAT(server.asked, ElementsAre("https://a.test/1"));
}

TEST_F(FetcherTest, BodiesThatNobodyReadsEnd) {
  server.answers["https://a.test/none"] = {{.status = 404}, std::string(10 << 20, 'x')};
  EXPECT_THAT(Get("https://a.test/none"), HasSubstr("the server answers 404"));
  EXPECT_LT(server.sent, std::size_t{100} << 10);
  EXPECT_EQ(fetcher.last_status(), 404);
  server.Redirect("https://a.test/moved", "/here");
  server.answers["https://a.test/moved"].body = std::string(10 << 20, 'x');
  server.Text("https://a.test/here", "here");
  EXPECT_EQ(Get("https://a.test/moved"), "here");
}

TEST_F(FetcherTest, TextsHaveATimeAndBlobsHaveNone) {
  Fetcher quick(server, 7);
  server.Text("https://a.test/1", "here");
  EXPECT_TRUE(quick.GetText("https://a.test/1", {}, 100).ok());
  EXPECT_EQ(server.max_seconds["https://a.test/1"], 7);
  const HttpSink sink{.on_head = [](const HttpHead&) { return Status::Ok(); },
                      .on_bytes = [](std::span<const std::byte>) { return Status::Ok(); }};
  EXPECT_TRUE(quick.Get("https://a.test/1", {}, sink).ok());
  EXPECT_EQ(server.max_seconds["https://a.test/1"], 0);
}

TEST_F(FetcherTest, ErrorsNameThePlaceWithoutItsSecrets) {
  EXPECT_EQ(Get("https://a.test/x?signature=1"),
            "error: a.test/x: the server answers 404, not found");
  server.Text("https://a.test/long", std::string(101, 'x'));
  EXPECT_THAT(Get("https://a.test/long"), HasSubstr("more than 100 bytes"));
}

TEST(UrlTest, Parses) {
  EXPECT_EQ(ParseUrl("http://h:1/a?b#c")->Text(), "http://h:1/a?b");
  EXPECT_EQ(ParseUrl("https://h")->Text(), "https://h/");
  for (const char* bad : {"", "h/x", "ftp://h/", "http://", "http://u@h/", "http://h/ x",
                          "http:///x", "HTTP://h/", "javascript:x"}) {
    EXPECT_FALSE(ParseUrl(bad).ok()) << bad;
  }
  EXPECT_EQ(EscapedPath("a b/c%ü"), "a%20b/c%25%C3%BC");
}

}  // namespace
}  // namespace kvcache::pull
