// The server with the model that ships, through sockets.
#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "server/http/http_server.h"
#include "server/server_testing.h"

namespace kvcache::server::server_test {
namespace {

TEST_F(ServerTest, OperatorsRoutes) {
  EXPECT_EQ(Get("/health").json(), Json({{"status", "ok"}}));
  EXPECT_EQ(Get("/health", "HEAD").body, "");
  EXPECT_EQ(Get("/api/version").json(), Json({{"version", "0.12.10"}, {"kvcache", "0.1.0"}}));
  EXPECT_EQ(Get("/v1/models").json()["data"][0]["id"], "story");
  EXPECT_EQ(Get("/v1/models/story").json()["id"], "story");
  EXPECT_EQ(Get("/v1/models/other").status, 404);
}

TEST_F(ServerTest, UnknownRoutesAndMethodsHaveJsonErrors) {
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_TRUE(Get("/nothing").json()["error"].contains("message"));
  EXPECT_TRUE(Get("/api/nothing").json()["error"].is_string());
  EXPECT_EQ(Get("/v1/models/../../etc/passwd").status, 404);
  const HttpAnswer wrong = Get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_NE(wrong.head.find("Allow: POST\r\n"), std::string::npos);
}

TEST_F(ServerTest, ChatIsTheSameStreamedAndNot) {
  Json body = Chat("Tell me a story about a cat.");
  const std::string whole = ChatText(body);
  EXPECT_FALSE(whole.empty());
  body["stream"] = true;
  EXPECT_EQ(ChatText(body), whole);
  body["temperature"] = 1;
  body["seed"] = 7;
  const std::string sampled = ChatText(body);
  body["stream"] = false;
  EXPECT_EQ(ChatText(body), sampled);
}

TEST_F(ServerTest, ChatIsTheSameAloneAndAmongOthers) {
  std::vector<std::string> alone;
  const auto body_of = [](int i) {
    Json body = Chat(StrCat("Story number ", i), 16 + i);
    body["temperature"] = i % 2;
    body["seed"] = i;
    body["stream"] = i % 3 == 0;
    return body;
  };
  for (int i = 0; i < 8; ++i) alone.push_back(ChatText(body_of(i)));
  Start({});
  std::vector<std::string> together(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { together[static_cast<std::size_t>(i)] = ChatText(body_of(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST_F(ServerTest, UsageCountsCachedTokens) {
  Json body = Chat("A question that comes twice, word for word.", 4);
  const Json first = Post("/v1/chat/completions", body).json()["usage"];
  const Json second = Post("/v1/chat/completions", body).json()["usage"];
  EXPECT_EQ(first["completion_tokens"], 4);
  EXPECT_EQ(second["prompt_tokens"], first["prompt_tokens"]);
  EXPECT_EQ(second["prompt_tokens_details"]["cached_tokens"].get<int>(),
            second["prompt_tokens"].get<int>() - 1);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto events = Events(Post("/v1/chat/completions", body).body);
  ASSERT_GE(events.size(), 3);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"], second);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
}

TEST_F(ServerTest, CompletionsStopAtAString) {
  const Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 40}, {"temperature", 0}};
  const Json whole = Post("/v1/completions", body).json()["choices"][0];
  const auto text = whole["text"].get<std::string>();
  ASSERT_GT(text.size(), 12);
  Json stopped = body;
  const std::string stop = text.substr(8, 4);
  stopped["stop"] = stop;
  const Json cut = Post("/v1/completions", stopped).json()["choices"][0];
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], "stop");
}

TEST_F(ServerTest, RefusedFieldsAreNamed) {
  const std::vector<std::pair<std::string, Json>> refused = {
      {"temperature", 9},
      {"temperature", "1"},
      {"top_p", 2},
      {"n", 17},
      {"n", 0},
      {"logprobs", 1},
      {"top_logprobs", 3},
      {"logit_bias", {{"5", 101}}},
      {"logit_bias", {{"five", 1}}},
      {"logit_bias", {{"99999999", 1}}},
      {"stop", Json::array({""})},
      {"stream", "yes"},
      {"max_tokens", 0},
      {"seed", 1.5},
      {"messages", "text"},
      {"max_completion_tokens", -3},
      {"tools", Json::array({{{"type", "function"}}})},
      {"response_format", {{"type", "json"}}},
      {"response_format", {{"type", "json_schema"}}},
      {"response_format", "json"}};
  for (const auto& [name, value] : refused) {
    Json body = Chat("Hi");
    body[name] = value;
    const HttpAnswer answer = Post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << name;
    EXPECT_EQ(answer.json()["error"]["param"], name) << answer.body;
  }
  Json body = Chat("Hi", 1);
  body["something"] = 1;
  body["tools"] = Json::array({{{"type", "unknown"}}});
  body["seed"] = nullptr;
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
  body["model"] = "other";
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 404);
}

TEST_F(ServerTest, OllamaHasTheTextsOfOpenAi) {
  Json body = Chat("Tell me of a dog.");
  body["temperature"] = 1;
  body["seed"] = 3;
  const std::string expected = ChatText(body);
  const Json options = {{"temperature", 1}, {"seed", 3}, {"num_predict", 24}};
  Json chat = {
      {"model", "story"}, {"messages", body["messages"]}, {"options", options}, {"stream", false}};
  const Json whole = Post("/api/chat", chat).json();
  EXPECT_EQ(whole["message"]["content"], expected);
  EXPECT_EQ(whole["done_reason"], "length");
  EXPECT_EQ(whole["eval_count"], 24);
  EXPECT_EQ(whole["prompt_eval_cached_count"].get<int>(),
            whole["prompt_eval_count"].get<int>() - 1);
  chat["stream"] = true;
  std::string streamed;
  std::string lines = Post("/api/chat", chat).body;
  for (std::size_t end = lines.find('\n'); end != lines.npos; end = lines.find('\n')) {
    const Json line = Json::parse(lines.substr(0, end), nullptr, false);
    streamed += line["message"]["content"].get<std::string>();
    EXPECT_EQ(line["done"].get<bool>(), line.contains("eval_count"));
    lines.erase(0, end + 1);
  }
  EXPECT_EQ(streamed, expected);
  const Json prompt = {
      {"model", "story"}, {"prompt", "Tell me of a dog."}, {"options", options}, {"stream", false}};
  EXPECT_EQ(Post("/api/generate", prompt).json()["response"], expected);
  Json raw = prompt;
  raw["raw"] = true;
  const Json text = {
      {"prompt", "Tell me of a dog."}, {"temperature", 1}, {"seed", 3}, {"max_tokens", 24}};
  EXPECT_EQ(Post("/api/generate", raw).json()["response"],
            Post("/v1/completions", text).json()["choices"][0]["text"]);
}

TEST_F(ServerTest, TokensAndTemplates) {
  const std::string text = "Tell me of a cow.";
  const Json tokens = Post("/tokenize", Json({{"content", text}})).json()["tokens"];
  EXPECT_GT(tokens.size(), 4);
  EXPECT_EQ(Post("/detokenize", Json({{"tokens", tokens}})).json()["content"], text);
  const Json whole =
      Post("/tokenize", Json({{"content", text}, {"add_special", true}, {"with_pieces", true}}))
          .json()["tokens"];
  ASSERT_EQ(whole.size(), tokens.size() + 1);
  std::string joined;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(whole[i + 1]["id"], tokens[i]);
    joined += whole[i + 1]["piece"].get<std::string>();
  }
  EXPECT_EQ(joined, " " + text);
  const Json body = {{"messages", Chat(text)["messages"]}};
  const Json prompt = Post("/apply-template", body).json()["prompt"];
  EXPECT_NE(prompt.get<std::string>().find(text), std::string::npos);
  const Json counted = Post("/v1/messages/count_tokens", body).json();
  const Json again =
      Post("/tokenize", Json({{"content", prompt}, {"add_special", true}})).json()["tokens"];
  EXPECT_EQ(counted["input_tokens"], again.size());
  for (const char* path : {"/tokenize", "/detokenize", "/apply-template", "/probe"}) {
    EXPECT_EQ(Post(path, Json::object()).status, 400) << path;
    EXPECT_EQ(Post(path, Json({{"content", 5}, {"tokens", {-1}}, {"messages", 5}})).status, 400)
        << path;
  }
  EXPECT_EQ(Post("/detokenize", Json({{"tokens", {1 << 30}}})).status, 400);
}

TEST_F(ServerTest, ProbeSaysWhatAPromptWouldReuse) {
  const Json body = Chat("A sentence that only the probe's test has.", 4);
  const Json fresh = Post("/probe", body).json();
  const int size = fresh["prompt_tokens"].get<int>();
  EXPECT_LT(fresh["cached_tokens"].get<int>(), size);
  EXPECT_EQ(Post("/probe", body).json(), fresh);  // a probe changes nothing
  (void)ChatText(body);
  const Json known = Post("/probe", body).json();
  EXPECT_EQ(known["prompt_tokens"], size);
  EXPECT_EQ(known["cached_tokens"], size - 1);
  EXPECT_EQ(known["missed"], Json::array({{{"tokens", 1}, {"reason", "last token"}}}));
  EXPECT_EQ(known["difference"], nullptr);
  const Json other = Chat("A sentence that only the test of probes has.", 4);
  const Json differs = Post("/probe", other).json();
  EXPECT_NE(differs["difference"]["line"].get<std::string>().find("test of probes"),
            std::string::npos)
      << differs;
  EXPECT_EQ(Post("/v1/completions", Json({{"prompt", "Once"}, {"max_tokens", 1}})).status, 200);
  EXPECT_EQ(Post("/probe", Json({{"prompt", "Once"}})).json()["cached_tokens"], 1);
}

TEST_F(ServerTest, SlotsListTheSequencesWithoutTheirTexts) {
  const Json idle = Get("/slots").json();
  EXPECT_EQ(idle["sequences"], Json::array());
  EXPECT_EQ(idle["max_sequences"], 4);
  Json body = Chat("A secret story", 400);
  body["stream"] = true;
  const std::string text = body.dump();
  Client client(server_->port());
  ASSERT_TRUE(client.Write(StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                                  "Content-Length: ", text.size(), "\r\n\r\n", text)));
  (void)client.Read("content\":\"");
  const HttpAnswer answer = Get("/slots");
  const Json sequences = answer.json()["sequences"];
  ASSERT_EQ(sequences.size(), 1) << answer.body;
  EXPECT_GE(sequences[0]["sequence"].get<int>(), 0);
  EXPECT_GT(sequences[0]["prompt_tokens"].get<int>(), 3);
  EXPECT_EQ(answer.body.find("secret"), std::string::npos);
  EXPECT_LT(answer.json()["free_cells"], idle["free_cells"]);
}

TEST_F(ServerTest, MetricsCountTokens) {
  (void)ChatText(Chat("Count me", 5));
  const std::string metrics = Get("/metrics").body;
  EXPECT_NE(metrics.find("\nkvcache_generated_tokens_total 5\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nkvcache_requests_running 0\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nkvcache_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1\n"),
            std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("\nkvcache_time_to_first_token_seconds_count 1\n"), std::string::npos);
}

TEST_F(ServerTest, OllamaListsAndRefuses) {
  EXPECT_EQ(Get("/api/tags").json()["models"][0]["name"], "story:latest");
  EXPECT_EQ(Get("/api/ps").json()["models"][0]["context_length"], 512);
  const Json show = Post("/api/show", Json({{"model", "story:latest"}})).json();
  EXPECT_EQ(show["capabilities"], Json::array({"completion"}));
  EXPECT_EQ(show["model_info"]["general.architecture"], "llama");
  EXPECT_EQ(show["model_info"]["general.basename"], "story");
  EXPECT_EQ(Post("/api/show", Json({{"model", "other"}})).status, 404);
  const HttpAnswer format = Post("/api/generate", Json({{"prompt", "Hi"}, {"format", "yaml"}}));
  EXPECT_EQ(format.status, 400);
  EXPECT_NE(format.json()["error"].get<std::string>().find("'format'"), std::string::npos);
  const Json hot = {{"prompt", "Hi"}, {"options", {{"temperature", "hot"}}}};
  EXPECT_EQ(Post("/api/generate", hot).status, 400);
}

TEST_F(ServerTest, PromptBeyondTheContext) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "once ";
  const HttpAnswer answer = Post("/v1/chat/completions", Chat(text));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
}

TEST_F(ServerTest, BadBodiesHaveOneJsonError) {
  const std::string deep(100000, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), deep, std::string("{\"a\": \"\xff\xfe\"}"),
        std::string("[]"), std::string("{\"temperature\": 1e999}")}) {
    const HttpAnswer answer = Post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << body.substr(0, 40);
    EXPECT_TRUE(answer.json()["error"]["message"].is_string()) << answer.body;
  }
}

TEST_F(ServerTest, BadHttpIsRefused) {
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(Raw("nonsense\r\n\r\n").status, 400);
  EXPECT_EQ(Raw(post + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}").status, 400);
  EXPECT_EQ(Raw(post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}").status, 400);
  EXPECT_EQ(Raw(post + "A: b\r\n folded\r\nContent-Length: 2\r\n\r\n{}").status, 400);
  EXPECT_EQ(Raw(post + "Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n").status, 413);
  EXPECT_EQ(Raw(post + "A: " + std::string(100000, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(Raw("GET /health HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n").status,
            403);
}

TEST_F(ServerTest, TransportDetails) {
  const std::string head = "Host: localhost\r\n";
  EXPECT_EQ(Raw("GET /health HTTP/1.0\r\n\r\n").body, "{\"status\":\"ok\"}");
  const HttpAnswer chunked = Raw("POST /v1/completions HTTP/1.1\r\n" + head +
                                 "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 "2\r\n[]\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.status, 400);
  EXPECT_NE(chunked.body.find("not a JSON object"), std::string::npos);
  Client pipelined(server_->port());
  (void)pipelined.Write("GET /health HTTP/1.1\r\n" + head + "\r\nGET /api/version HTTP/1.1\r\n" +
                        head + "Connection: close\r\n\r\n");
  const std::string both = pipelined.Read();
  EXPECT_LT(both.find("status\":"), both.find("version\":"));
  Client expecting(server_->port());
  (void)expecting.Write("POST /v1/completions HTTP/1.1\r\n" + head +
                        "Connection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(expecting.Read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  (void)expecting.Write("[]");
  EXPECT_EQ(Parse(expecting.Read()).status, 400);
}

TEST_F(ServerTest, SlowRequestIsLetGo) {
  Start({.http = {.receive_seconds = 1}});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Raw("GET /health HTTP/1.1\r\nHost: loc").status, 408);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(6));
}

TEST_F(ServerTest, ClientThatLeavesFreesItsSequence) {
  for (const bool stream : {true, false}) {
    Json body = Chat("A long story", 400);
    body["stream"] = stream;
    body["temperature"] = 1;
    const std::string text = body.dump();
    {
      Client client(server_->port());
      ASSERT_TRUE(client.Write(StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                                      "Content-Length: ", text.size(), "\r\n\r\n", text)));
      if (stream) (void)client.Read("content");
    }
    EXPECT_TRUE(BecomesIdle());
  }
}

TEST_F(ServerTest, StopLetsRequestsEnd) {
  Json body = Chat("A story for the end", 60);
  const std::string expected = ChatText(body);
  body["stream"] = true;
  const std::string text = body.dump();
  Client client(server_->port());
  ASSERT_TRUE(client.Write(StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                                  "Content-Length: ", text.size(), "\r\n\r\n", text)));
  std::string answer = client.Read("content\":\"");
  Client idle(server_->port());
  server_->Stop(std::chrono::seconds(20));
  answer += client.Read();
  EXPECT_NE(answer.find("data: [DONE]"), std::string::npos);
  std::string streamed;
  for (const Json& event : Events(Parse(answer).body)) {
    streamed += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, expected);
  EXPECT_EQ(idle.Read(), "");
}

TEST_F(ServerTest, StopWithoutRequestsReturns) {
  server_->Stop(std::chrono::seconds(20));
  server_->Stop(std::chrono::seconds(20));
  Start({});
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ServerTest, StopEndsOtherRequestsWithAnError) {
  const auto ask = [](Client& client, bool stream) {
    Json body = Chat("An endless story", 480);
    body["stream"] = stream;
    const std::string text = body.dump();
    return client.Write(StrCat(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", text.size(),
        "\r\n\r\n", text));
  };
  Client whole(server_->port());
  Client stream(server_->port());
  ASSERT_TRUE(ask(whole, false));
  ASSERT_TRUE(ask(stream, true));
  std::string streamed = stream.Read("content\":\"");
  server_->Stop(std::chrono::milliseconds(0));
  const HttpAnswer answer = Parse(whole.Read());
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json()["error"]["message"], "the server is stopping");
  EXPECT_NE(answer.head.find("Retry-After: 1\r\n"), std::string::npos);
  streamed += stream.Read();
  EXPECT_NE(streamed.find("data: {\"error\":{\"message\":\"the server is stopping\""),
            std::string::npos)
      << streamed;
}

TEST_F(ServerTest, AFullQueueIsRefused) {
  Start({.max_queued = 1});
  std::string prompt;
  for (int i = 0; i < 200000; ++i) prompt += "long ";
  const std::string text = Json({{"content", prompt}}).dump();
  const std::string request = StrCat("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n",
                                     "Content-Length: ", text.size(), "\r\n\r\n", text);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    ASSERT_TRUE(clients.back()->Write(request));
  }
  int served = 0;
  int refused = 0;
  for (const auto& client : clients) {
    const std::string head = client->Read("\r\n\r\n");
    served += head.starts_with("HTTP/1.1 200 ") ? 1 : 0;
    const bool later = head.find("Retry-After: 1\r\n") != std::string::npos;
    refused += head.starts_with("HTTP/1.1 503 ") && later ? 1 : 0;
  }
  EXPECT_EQ(served + refused, 8);
  EXPECT_GE(served, 1);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ServerTest, TooManyRequestsAreRefused) {
  Start({.max_running = 0});
  EXPECT_EQ(Post("/v1/chat/completions", Chat("Hi")).status, 429);
}

// Drops its replies, before or after their beginning.
class Forgetful final : public HttpHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    if (request.path == "/begun") reply->Begin("text/plain");
  }
  std::string ErrorBody(std::string_view /*path*/, int /*status*/,
                        std::string_view message) override {
    return std::string(message);
  }
};

TEST(HttpServerTest, ARequestThatNobodyAnswersEnds) {
  Forgetful handler;
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status().message();
  const auto ask = [&](const std::string& path) {
    Client client((*server)->port());
    EXPECT_TRUE(client.Write("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"));
    return client.Read(path == "/begun" ? "" : "answer");
  };
  const HttpAnswer whole = Parse(ask("/"));
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.body, "the server could not answer");
  EXPECT_TRUE(ask("/begun").starts_with("HTTP/1.1 200 OK"));
}

}  // namespace
}  // namespace kvcache::server::server_test
