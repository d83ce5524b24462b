// llama.cpp's routes, through sockets.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "server/server_testing.h"

namespace kvcache::server::llamacpp_test {
namespace {

Json Ask(const Json& prompt, int max = 12) {
  return {{"prompt", prompt}, {"n_predict", max}, {"temperature", 0}};
}

TEST_F(ServerTest, CompletionsHaveLlamaCppsShape) {
  const std::string prompt = "Once upon a time";
  const Json expected =
      Post("/v1/completions", Json{{"prompt", prompt}, {"max_tokens", 12}, {"temperature", 0}})
          .json();
  const HttpAnswer answer = Post("/completion", Ask(prompt));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  EXPECT_EQ(json["content"], expected["choices"][0]["text"]);
  EXPECT_EQ(json["stop"], true);
  EXPECT_EQ(json["stop_type"], "limit");
  EXPECT_EQ(json["stopping_word"], "");
  EXPECT_EQ(json["model"], "story");
  EXPECT_EQ(json["tokens_predicted"], 12);
  EXPECT_EQ(json["tokens_evaluated"], expected["usage"]["prompt_tokens"]);
  EXPECT_EQ(json["tokens_cached"].get<int>(), json["tokens_evaluated"].get<int>() - 1);
  EXPECT_EQ(json["truncated"], false);
  EXPECT_EQ(json["tokens"], Json::array());
  EXPECT_EQ(json["generation_settings"]["temperature"], 0);
  EXPECT_EQ(json["timings"]["predicted_n"], 12);
  EXPECT_EQ(json["timings"]["cache_n"], json["tokens_cached"]);
  EXPECT_FALSE(json.contains("choices"));
}

TEST_F(ServerTest, StreamsOfLlamaCppEndWithTheWholeAnswer) {
  Json body = Ask("Once upon a time");
  const Json whole = Post("/completion", body).json();
  body["stream"] = true;
  const HttpAnswer answer = Post("/completion", body);
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  const std::vector<Json> events = Events(answer.body);
  ASSERT_GE(events.size(), 2);
  std::string text;
  std::size_t tokens = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["stop"], &event == &events.back());
    text += event["content"].get<std::string>();
    tokens += event["tokens"].size();
  }
  EXPECT_EQ(text, whole["content"]);
  EXPECT_EQ(tokens, 12);
  EXPECT_EQ(events.back()["stop_type"], "limit");
  EXPECT_EQ(events.back()["tokens_predicted"], 12);
}

TEST_F(ServerTest, LlamaCppsPromptsAreTextsTokensAndLists) {
  const std::string text = "Once upon a time";
  const Json tokens =
      Post("/tokenize", Json{{"content", text}, {"add_special", true}}).json()["tokens"];
  const Json expected = Post("/completion", Ask(text)).json()["content"];
  EXPECT_EQ(Post("/completion", Ask(tokens)).json()["content"], expected);
  Json mixed = Json::array({tokens[0]});
  mixed.push_back(Post("/detokenize", Json{{"tokens", tokens}}).json()["content"]);
  EXPECT_EQ(Post("/completion", Ask(mixed)).status, 200);
  EXPECT_EQ(Post("/completion", Ask({{"prompt_string", text}})).json()["content"], expected);
  const Json list = Post("/completion", Ask(Json::array({text, tokens, "The dog"}))).json();
  ASSERT_EQ(list.size(), 3);
  EXPECT_EQ(list[0]["content"], expected);
  EXPECT_EQ(list[1]["content"], expected);
  EXPECT_EQ(list[2]["index"], 2);
  EXPECT_EQ(list[2]["content"], Post("/completion", Ask("The dog")).json()["content"]);
  for (const Json& wrong : {Json(), Json(5), Json::array(), Json(true), Json::array({1, -1}),
                            Json::array({1, 1 << 30}), Json::array({1.5, 2})}) {
    const HttpAnswer refused = Post("/completion", Ask(wrong));
    EXPECT_EQ(refused.status, 400) << wrong;
    EXPECT_EQ(refused.json()["error"]["code"], 400) << refused.body;
    EXPECT_EQ(refused.json()["error"]["type"], "invalid_request_error");
    EXPECT_NE(refused.body.find("prompt"), std::string::npos) << refused.body;
  }
}

TEST_F(ServerTest, LlamaCppsOptionsHaveAnEffect) {
  Json body = Ask("Once upon a time", 40);
  const std::string text = Post("/completion", body).json()["content"].get<std::string>();
  const std::string word = text.substr(text.size() / 2, 4);
  body["stop"] = Json::array({word, ""});
  const Json stopped = Post("/completion", body).json();
  EXPECT_EQ(stopped["stop_type"], "word");
  EXPECT_EQ(stopped["stopping_word"], word);
  EXPECT_EQ(stopped["content"], text.substr(0, text.find(word)));
  body = Ask("Once upon a time", 4);
  body["n_probs"] = 3;
  body["return_tokens"] = true;
  const Json probable = Post("/completion", body).json();
  ASSERT_EQ(probable["completion_probabilities"].size(), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& token = probable["completion_probabilities"][i];
    EXPECT_EQ(token["id"], probable["tokens"][i]);
    EXPECT_EQ(token["top_logprobs"].size(), 3);
    EXPECT_EQ(token["top_logprobs"][0]["id"], token["id"]);  // greedy
  }
  // Neutral values and hints are taken.
  body = Ask("Once upon a time", 4);
  body.update(Json{{"cache_prompt", true},
                   {"id_slot", -1},
                   {"mirostat", 0},
                   {"typical_p", 1.0},
                   {"dry_multiplier", 0.0},
                   {"samplers", {"top_k"}},
                   {"grammar", ""},
                   {"seed", -1},
                   {"repeat_last_n", 64},
                   {"top_k", 40},
                   {"timings_per_token", true}});
  EXPECT_EQ(Post("/completion", body).status, 200);
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, Json>>{{"mirostat", 2},
                                                 {"grammar", "root ::= \"a\""},
                                                 {"ignore_eos", true},
                                                 {"lora", Json::array({{{"id", 0}}})},
                                                 {"temperature", "hot"},
                                                 {"n_predict", "many"},
                                                 {"logit_bias", Json::array({1})},
                                                 {"stop", 5},
                                                 {"json_schema", {{"type", 5}}}}) {
    Json refused = Ask("Once");
    refused[name] = value;
    const HttpAnswer answer = Post("/completion", refused);
    EXPECT_EQ(answer.status, 400) << name;
    EXPECT_NE(answer.body.find(name), std::string::npos) << answer.body;
  }
  body = Ask("Once upon a time", 60);
  body["json_schema"] = {{"type", "object"},
                         {"properties", {{"a", {{"type", "boolean"}}}}},
                         {"required", {"a"}},
                         {"additionalProperties", false}};
  const Json formed = Post("/completion", body).json();
  EXPECT_TRUE(Json::parse(formed["content"].get<std::string>())["a"].is_boolean()) << formed;
}

TEST_F(ServerTest, LogitBiasHasTokensOfTheModel) {
  const auto biases = [&](const Json& value) {
    Json body = Ask("Once upon a time", 1);
    body["logit_bias"] = value;
    return Post("/completion", body);
  };
  const int size = engine_->vocabulary_size();
  const std::vector<Json> wrong = {-7,   -1,    size, 99999999, 4294967596,    4294967296,
                                   1e20, 300.5, true, nullptr,  Json::array(), ""};
  for (const Json& token : wrong) {
    const HttpAnswer answer = biases(Json::array({Json::array({token, 100})}));
    EXPECT_EQ(answer.status, 400) << token << answer.body;
    EXPECT_NE(answer.body.find("logit_bias"), std::string::npos) << answer.body;
  }
  for (const char* const key : {"-7", "-1", "99999999", "4294967596", "99999999999999999999"}) {
    EXPECT_EQ(biases({{key, 100}}).status, 400) << key;
    EXPECT_EQ(biases(Json::array({Json::array({key, 100})})).status, 400) << key;
  }
  const std::string text = biases({{"300", 100}}).json()["content"];
  EXPECT_FALSE(text.empty());
  for (const Json& same :
       {Json::array({Json::array({300, 100})}), Json::array({Json::array({300.0, 100})}),
        Json::array({Json::array({"300", 100})})}) {
    EXPECT_EQ(biases(same).json()["content"], text) << same;
  }
}

TEST_F(ServerTest, PathsWithoutV1Work) {
  const Json chat = Chat("Hi", 4);
  EXPECT_EQ(Post("/chat/completions", chat).json()["choices"],
            Post("/v1/chat/completions", chat).json()["choices"]);
  EXPECT_EQ(Get("/models").json(), Get("/v1/models").json());
  EXPECT_EQ(Get("/v1/health").json(), Get("/health").json());
  // Clients of OpenAI and of llama.cpp ask at /completions.
  Json body = {{"prompt", "Once"}, {"max_tokens", 4}, {"temperature", 0}};
  const Json both = Post("/completions", body).json();
  const Json openai = Post("/v1/completions", body).json();
  EXPECT_EQ(both["choices"][0]["text"], openai["choices"][0]["text"]);
  EXPECT_EQ(both["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(both["usage"]["completion_tokens"], 4);
  EXPECT_EQ(both["content"], openai["choices"][0]["text"]);
  body["stream"] = true;
  std::string text;
  for (const Json& event : Events(Post("/completions", body).body)) {
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, both["content"]);
  for (const char* path : {"/embeddings", "/nothing"}) {
    EXPECT_EQ(Post(path, Json::object()).status, 404) << path;
  }
}

TEST_F(ServerTest, PropsDescribeTheModel) {
  const HttpAnswer answer = Get("/props");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json props = answer.json();
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 512);
  EXPECT_EQ(props["default_generation_settings"]["params"]["temperature"], 1.0);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_alias"], "story");
  EXPECT_TRUE(props["chat_template"].is_string());
  EXPECT_EQ(answer.body.find(KVCACHE_SOURCE_DIR), std::string::npos) << "a path of this machine";
  EXPECT_EQ(Post("/props", Json::object()).status, 405);
}

TEST_F(ServerTest, APromptBeyondTheContextHasLlamaCppsError) {
  std::string prompt;
  for (int i = 0; i < 600; ++i) prompt += "dog ";
  const Json error = Post("/completion", Ask(prompt)).json()["error"];
  EXPECT_EQ(error["code"], 400);
  EXPECT_EQ(error["type"], "exceed_context_size_error") << error;
}

TEST_F(ServerTest, ModelsWithoutTheTokensRefuseToInfill) {
  const Json infill = {{"input_prefix", "a"}, {"input_suffix", "b"}};
  EXPECT_EQ(Post("/infill", infill).status, 400);
  EXPECT_NE(Post("/infill", infill).body.find("fill-in-the-middle"), std::string::npos);
  for (const auto& [path, body] : std::vector<std::pair<const char*, Json>>{
           {"/v1/completions", {{"prompt", "a"}, {"suffix", "b"}}},
           {"/api/generate", {{"prompt", "a"}, {"suffix", "b"}}}}) {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_NE(answer.body.find("suffix"), std::string::npos) << answer.body;
    Json neutral = body;
    neutral["suffix"] = "";
    neutral["stream"] = false;
    neutral["max_tokens"] = 2;
    neutral["options"] = {{"num_predict", 2}};
    EXPECT_EQ(Post(path, neutral).status, 200) << path;
  }
}

// Returns the story model with fill-in-the-middle tokens: some of its own.
std::string WriteInfillModel(const std::string& folder) {
  const auto file =
      std::move(GgufFile::Open(std::string(KVCACHE_SOURCE_DIR) + "/models/story.gguf")).value();
  GgufHeader header;
  for (const GgufEntry& entry : file->entries()) {
    if (entry.key != "general.alignment") header.SetEntry(entry);
  }
  header.SetUint32("tokenizer.ggml.fim_pre_token_id", 300);
  header.SetUint32("tokenizer.ggml.fim_suf_token_id", 301);
  header.SetUint32("tokenizer.ggml.fim_mid_token_id", 302);
  for (const GgufTensor& tensor : file->tensors()) {
    header.AddTensor(tensor.name, tensor.type->type,
                     std::span(tensor.dims.data(), static_cast<std::size_t>(tensor.rank)));
  }
  const std::string path = folder + "/infill.gguf";
  auto writer = std::move(GgufWriter::Create(path, std::move(header))).value();
  for (std::size_t i = 0; i < file->tensors().size(); ++i) {
    EXPECT_TRUE(writer->Write(i, 0, file->tensors()[i].bytes).ok());
  }
  EXPECT_TRUE(writer->Finish().ok());
  return path;
}

TEST(Infill, TheModelWritesBetweenTwoTexts) {
  std::string folder = ::testing::TempDir() + "infill_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  auto engine = Engine::Open(WriteInfillModel(folder), {.threads = 2, .context = 256});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  auto server = Server::Start(**engine, {.name = "infill"}, {});
  ASSERT_TRUE(server.ok()) << server.status().message();
  const auto post = [&](const std::string& path, const Json& json) {
    const std::string body = json.dump();
    Client client((*server)->port());
    (void)client.Write(StrCat("POST ", path,
                              " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                              "Content-Length: ", body.size(), "\r\n\r\n", body));
    return Parse(client.Read());
  };
  const auto tokens = [&](const std::string& text) {
    return post("/tokenize", {{"content", text}}).json()["tokens"];
  };
  Json prompt = post("/tokenize", {{"content", ""}, {"add_special", true}}).json()["tokens"];
  prompt.push_back(300);
  for (const Json& token : tokens("The dog")) prompt.push_back(token);
  prompt.push_back(301);
  for (const Json& token : tokens("ran home.")) prompt.push_back(token);
  prompt.push_back(302);
  const Json expected =
      post("/completion", {{"prompt", prompt}, {"n_predict", 8}, {"temperature", 0}}).json();
  const HttpAnswer infill = post("/infill", {{"input_prefix", "The dog"},
                                             {"input_suffix", "ran home."},
                                             {"n_predict", 8},
                                             {"temperature", 0}});
  ASSERT_EQ(infill.status, 200) << infill.body;
  EXPECT_EQ(infill.json()["content"], expected["content"]);
  EXPECT_EQ(infill.json()["tokens_evaluated"], prompt.size());
  const Json completion =
      post("/v1/completions",
           {{"prompt", "The dog"}, {"suffix", "ran home."}, {"max_tokens", 8}, {"temperature", 0}})
          .json();
  EXPECT_EQ(completion["choices"][0]["text"], expected["content"]) << completion;
  const Json ollama = post("/api/generate", {{"prompt", "The dog"},
                                             {"suffix", "ran home."},
                                             {"stream", false},
                                             {"options", {{"num_predict", 8}, {"temperature", 0}}}})
                          .json();
  EXPECT_EQ(ollama["response"], expected["content"]) << ollama;
  const Json extra =
      post("/infill", {{"input_prefix", "The dog"},
                       {"input_suffix", "ran home."},
                       {"input_extra", Json::array({{{"filename", "a.c"}, {"text", "cat"}}})},
                       {"prompt", " and"},
                       {"n_predict", 2}})
          .json();
  EXPECT_GT(extra["tokens_evaluated"].get<std::size_t>(), prompt.size());
  EXPECT_EQ(post("/infill", {{"input_suffix", "b"}}).status, 400);
  EXPECT_EQ(
      post("/infill", {{"input_prefix", "a"}, {"input_suffix", "b"}, {"input_extra", 5}}).status,
      400);
  const Json shown = post("/api/show", {{"model", "infill"}}).json()["capabilities"];
  EXPECT_NE(std::find(shown.begin(), shown.end(), "insert"), shown.end());
  server->reset();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvcache::server::llamacpp_test
