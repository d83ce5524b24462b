#include "server/request_log.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache::server::request_log_test {
namespace {

// A client that may leave.
struct FakeReply final : HttpReply {
  void Send(int status, std::string /*body*/, HttpHeaders /*headers*/) override { sent = status; }
  void Begin(std::string /*content_type*/) override {}
  void Write(std::string /*bytes*/) override {}
  void End() override { ended = true; }
  void OnGone(std::function<void()> function) override { gone.push_back(std::move(function)); }
  void Leave() const {
    for (const auto& function : gone) function();
  }

  int sent = 0;
  bool ended = false;
  std::vector<std::function<void()>> gone;
};

class RequestLogTest : public ::testing::Test {
 protected:
  std::shared_ptr<RecordedReply> Come(const User& user = {.is_admin = true}) {
    client_ = std::make_shared<FakeReply>();
    HttpRequest request;
    request.method = "POST";
    request.path = "/v1/completions";
    return std::make_shared<RecordedReply>(client_, log_, request, user);
  }
  RequestRecord Newest() const {
    const auto records = log_.Last({.is_admin = true}, 1000);
    return records.empty() ? RequestRecord{} : records.back();
  }

  RequestLog log_;
  std::shared_ptr<FakeReply> client_;
  static constexpr const char* kError = R"({"error": {"message": "too long", "code": 3}})";
};

TEST_F(RequestLogTest, FollowsARequest) {
  const auto reply = Come();
  EXPECT_EQ(Newest().phase, RequestPhase::kQueued);
  EXPECT_GT(Newest().unix_ms, 0);
  EXPECT_EQ(Newest().route, "POST /v1/completions");
  reply->entry()->UseModel("story");
  ReuseReport reuse;
  reuse.prompt = 7;
  reply->entry()->Start(reuse);
  EXPECT_EQ(Newest().phase, RequestPhase::kPrompt);
  EXPECT_LT(Newest().first_token_seconds, 0);
  reply->entry()->CountToken();
  reply->entry()->CountToken();
  EXPECT_EQ(Newest().phase, RequestPhase::kGenerating);
  EXPECT_EQ(Newest().generated, 2);
  EXPECT_GE(Newest().first_token_seconds, 0);
  reply->Begin("text/event-stream");
  reply->End();
  EXPECT_TRUE(client_->ended);
  const RequestRecord record = Newest();
  EXPECT_EQ(record.phase, RequestPhase::kDone);
  EXPECT_EQ(record.status, 200);
  EXPECT_EQ(record.model, "story");
  EXPECT_EQ(record.reuse.prompt, 7);
  EXPECT_GE(record.seconds, record.first_token_seconds);
  EXPECT_EQ(Newest().seconds, record.seconds) << "it has ended";
}

TEST_F(RequestLogTest, ErrorsOfAllApisAreRead) {
  const std::pair<const char*, const char*> cases[] = {
      {kError, "too long"},
      {R"({"type": "error", "error": {"type": "x", "message": "too long"}})", "too long"},
      {R"({"error": "too long"})", "too long"},
      {R"({"error": {"message": 5}})", ""},
      {R"({"error": null})", ""},
      {"[]", ""},
      {"<html>", ""},
      {"", ""},
  };
  for (const auto& [body, message] : cases) {
    Come()->Send(400, body, {});
    EXPECT_EQ(Newest().phase, RequestPhase::kFailed);
    EXPECT_EQ(Newest().status, 400);
    EXPECT_EQ(Newest().error, message) << body;
    EXPECT_EQ(client_->sent, 400);
  }
}

TEST_F(RequestLogTest, TheFirstEndHolds) {
  {
    const auto reply = Come();
    client_->Leave();
    EXPECT_EQ(Newest().phase, RequestPhase::kCancelled);
    reply->Send(503, kError, {});
  }
  EXPECT_EQ(Newest().phase, RequestPhase::kCancelled);
  {
    const auto reply = Come();
    reply->Begin("text/event-stream");
    reply->entry()->Fail("no memory");
    reply->End();
    client_->Leave();
  }
  EXPECT_EQ(Newest().phase, RequestPhase::kFailed);
  EXPECT_EQ(Newest().error, "no memory");
  (void)Come();
  EXPECT_EQ(Newest().phase, RequestPhase::kFailed);
  EXPECT_EQ(Newest().error, "the server gave no answer");
}

TEST_F(RequestLogTest, LeavesOutWhatEndedWellWithoutAPrompt) {
  Come()->Send(200, "{}", {});
  EXPECT_TRUE(log_.Last({.is_admin = true}, 10).empty());
  Come()->Send(404, "{}", {});
  EXPECT_EQ(log_.Last({.is_admin = true}, 10).size(), 1U);
}

TEST_F(RequestLogTest, IsBoundedAndOnesOwn) {
  const User alice{.salt = 1, .name = "alice"};
  const User bob{.salt = 2, .name = "bob"};
  std::vector<std::shared_ptr<RecordedReply>> running;
  for (int i = 0; i < 5; ++i) running.push_back(Come(bob));
  for (int i = 0; i < 100; ++i) Come(i % 2 == 0 ? alice : bob)->Send(500, kError, {});
  EXPECT_EQ(log_.Last(alice, 1000).size(), 50U);
  EXPECT_EQ(log_.Last(bob, 1000).size(), 55U);
  EXPECT_EQ(log_.Last(bob, 3).size(), 6U) << "three that run and three that ended";
  EXPECT_EQ(log_.Last({.salt = 3}, 1000).size(), 0U);
  EXPECT_EQ(log_.Last({.salt = 3, .is_admin = true}, 1000).size(), 105U);
  for (const RequestRecord& record : log_.Last(alice, 1000)) EXPECT_EQ(record.user, "alice");
  for (int i = 0; i < 3000; ++i) Come(alice)->Send(500, kError, {});
  EXPECT_EQ(log_.Last({.is_admin = true}, 100000).size(), RequestLog::kMaxRequests);
  for (const auto& reply : running) reply->Send(500, kError, {});  // it is in the log no more
}

TEST_F(RequestLogTest, LongTextsAreShortened) {
  client_ = std::make_shared<FakeReply>();
  HttpRequest request;
  request.method = "POST";
  request.path = "/" + std::string(60000, 'x');
  RecordedReply(client_, log_, request, {})
      .Send(404, StrCat(R"({"error": ")", std::string(9000, 'y'), "\"}"), {});
  EXPECT_LT(Newest().route.size(), 200U);
  EXPECT_LT(Newest().error.size(), 600U);
  EXPECT_FALSE(Newest().error.empty());
}

}  // namespace
}  // namespace kvcache::server::request_log_test
