// Choices, log probabilities and biases of OpenAI's routes, and one text on all routes.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::openai_test {
namespace {

TEST_F(ServerTest, ChoicesOfASeedDiffer) {
  Json body = Chat("Tell me of a pig.", 16);
  body["n"] = 3;
  const auto texts = [&] {
    std::vector<std::string> all(3);
    const HttpAnswer answer = Post("/v1/chat/completions", body);
    if (!body.value("stream", false)) {
      const Json json = answer.json();
      EXPECT_EQ(json["choices"].size(), 3);
      EXPECT_EQ(json["usage"]["completion_tokens"], 48);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(json["choices"][i]["index"], i);
        all[i] = json["choices"][i]["message"]["content"].get<std::string>();
      }
      return all;
    }
    std::vector<int> ends(3);
    std::vector<std::string> ids;
    for (const Json& event : Events(answer.body)) {
      ids.push_back(event["id"].get<std::string>());
      if (event["choices"].empty()) {
        EXPECT_EQ(event["usage"]["completion_tokens"], 48);
        continue;
      }
      const auto index = event["choices"][0]["index"].get<std::size_t>();
      all[index] += event["choices"][0]["delta"].value("content", "");
      ends[index] += event["choices"][0]["finish_reason"] == "length" ? 1 : 0;
    }
    EXPECT_EQ(ends, (std::vector<int>{1, 1, 1}));
    EXPECT_EQ(std::count(ids.begin(), ids.end(), ids.front()), std::ssize(ids));
    EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
    return all;
  };
  const std::vector<std::string> cold = texts();
  EXPECT_EQ(cold, std::vector<std::string>(3, cold[0]));
  body["temperature"] = 1;
  body["seed"] = 11;
  const std::vector<std::string> sampled = texts();
  EXPECT_NE(sampled[0], sampled[1]);
  EXPECT_NE(sampled[1], sampled[2]);
  EXPECT_NE(sampled[0], sampled[2]);
  EXPECT_EQ(texts(), sampled);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  EXPECT_EQ(texts(), sampled);
  body = Chat("Tell me of a pig.", 16);
  body["temperature"] = 1;
  body["seed"] = 11;
  EXPECT_EQ(ChatText(body), sampled[0]);
  Start({.max_running = 2});
  body["n"] = 3;
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 429);
}

TEST_F(ServerTest, LogprobsAreTheModels) {
  Json body = Chat("Tell me of a hen.", 12);
  body["logprobs"] = true;
  body["top_logprobs"] = 3;
  const Json choice = Post("/v1/chat/completions", body).json()["choices"][0];
  const Json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 12);
  std::string text;
  for (const Json& token : content) {
    text += token["token"].get<std::string>();
    ASSERT_EQ(token["top_logprobs"].size(), 3);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]);
    EXPECT_LE(token["logprob"].get<double>(), 0.0);
    EXPECT_GE(token["logprob"].get<double>(), token["top_logprobs"][1]["logprob"].get<double>());
    EXPECT_EQ(token["bytes"].size(), token["token"].get<std::string>().size());
  }
  EXPECT_EQ(text, choice["message"]["content"]);
  body["stream"] = true;
  Json streamed = Json::array();
  for (const Json& event : Events(Post("/v1/chat/completions", body).body)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    for (const Json& token : logprobs["content"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed, content);
  // At another temperature they are the same.
  body["stream"] = false;
  body["max_tokens"] = 1;
  body["temperature"] = 2;
  EXPECT_EQ(Post("/v1/chat/completions", body)
                .json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
            content[0]["top_logprobs"]);
  const Json raw = {
      {"prompt", "Once upon"}, {"max_tokens", 5}, {"temperature", 0}, {"logprobs", 2}};
  const Json of_text = Post("/v1/completions", raw).json()["choices"][0]["logprobs"];
  EXPECT_EQ(of_text["tokens"].size(), 5);
  EXPECT_EQ(of_text["top_logprobs"][4].size(), 2);
  EXPECT_EQ(of_text["text_offset"][1], of_text["tokens"][0].get<std::string>().size());
}

TEST_F(ServerTest, LogitBiasForcesAndBans) {
  const Json tokens = Post("/tokenize", Json({{"content", " dog"}})).json()["tokens"];
  ASSERT_FALSE(tokens.empty());
  const int token = tokens.back().get<int>();
  const auto piece =
      Post("/tokenize", Json({{"content", " dog"}, {"with_pieces", true}})).json()["tokens"];
  Json body = {{"prompt", "Once"}, {"max_tokens", 3}, {"temperature", 0}};
  body["logit_bias"] = {{std::to_string(token), 100}};
  std::string expected;
  for (int i = 0; i < 3; ++i) expected += piece.back()["piece"].get<std::string>();
  EXPECT_EQ(Post("/v1/completions", body).json()["choices"][0]["text"], expected);
  body.erase("logit_bias");
  body["max_tokens"] = 1;
  const std::string first = Post("/v1/completions", body).json()["choices"][0]["text"];
  const Json ids = Post("/tokenize", Json({{"content", "Once" + first}})).json()["tokens"];
  body["logit_bias"] = {{std::to_string(ids.back().get<int>()), -100}};
  EXPECT_NE(Post("/v1/completions", body).json()["choices"][0]["text"], first);
}

// Returns the text of an answer of any route.
std::string TextOf(const std::string& path, const HttpAnswer& answer, bool stream) {
  if (answer.status != 200) return answer.body;
  std::string text;
  if (path.starts_with("/api/")) {
    std::string lines = answer.body + "\n";
    for (std::size_t end = lines.find('\n'); end != lines.npos; end = lines.find('\n')) {
      const Json line = Json::parse(lines.substr(0, end), nullptr, false);
      lines.erase(0, end + 1);
      if (!line.is_object()) continue;
      text += path == "/api/chat" ? line["message"]["content"].get<std::string>()
                                  : line["response"].get<std::string>();
    }
    return text;
  }
  if (!stream) {
    const Json json = answer.json();
    return path == "/v1/messages" ? json["content"][0]["text"].get<std::string>()
                                  : json["choices"][0]["message"]["content"].get<std::string>();
  }
  for (const Json& event : Events(answer.body)) {
    if (event.contains("choices")) text += event["choices"][0]["delta"].value("content", "");
    if (event.contains("delta")) text += event["delta"].value("text", "");
  }
  return text;
}

TEST_F(ServerTest, AllRoutesHaveOneTextAloneAndAmongOthers) {
  struct Asked {
    std::string path;
    Json body;
    bool stream = false;
    std::string text;
  };
  std::vector<Asked> asked;
  std::vector<std::string> expected;
  for (int i = 0; i < 4; ++i) {
    const std::string question = StrCat("Tell me about number ", i, ".");
    Json body = Chat(question, 20);
    body["temperature"] = i % 2;
    body["seed"] = i;
    expected.push_back(ChatText(body));
    body["options"] = {{"temperature", i % 2}, {"seed", i}, {"num_predict", 20}};
    for (const bool stream : {false, true}) {
      body["stream"] = stream;
      for (const char* path : {"/v1/chat/completions", "/v1/messages", "/api/chat"}) {
        asked.push_back({path, body, stream, {}});
      }
      Json prompt = body;
      prompt["prompt"] = question;
      asked.push_back({"/api/generate", prompt, stream, {}});
    }
  }
  for (Asked& one : asked) one.text = TextOf(one.path, Post(one.path, one.body), one.stream);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i].text, expected[i / 8]) << asked[i].path << " stream " << asked[i].stream;
  }
  Start({});
  std::vector<std::thread> threads;
  for (Asked& one : asked) {
    threads.emplace_back(
        [&] { one.text = TextOf(one.path, Post(one.path, one.body), one.stream); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i].text, expected[i / 8]) << asked[i].path << " stream " << asked[i].stream;
  }
}

}  // namespace
}  // namespace kvcache::server::openai_test
