// Tests the routes of embeddings and ranks, with an embedder whose vectors are easy to say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "server/embedder_testing.h"
#include "server/server_testing.h"

namespace kvcache::server::embeddings_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model that generates, one that embeds and one that ranks.
class ThreeModels final : public ModelSource {
 public:
  explicit ThreeModels(Engine& engine) : engine_(engine) {}

  std::vector<ServedModel> List() override {
    return {{.name = "story", .path = "story"},
            {.name = "embed",
             .family = "simple",
             .embedding_length = 384,
             .path = "embed",
             .purpose = FilePurpose::kEmbedding},
            {.name = "rank", .path = "rank", .purpose = FilePurpose::kReranking}};
  }
  Result<ServedModel> Find(const std::string& name) override {
    for (ServedModel& model : List()) {
      if (MeansModel(name, model.name)) return model;
    }
    return Status(StatusCode::kNotFound, "no such model");
  }
  Result<std::shared_ptr<Engine>> Open(const ServedModel& /*model*/) override {
    return std::shared_ptr<Engine>(&engine_, [](Engine*) {});
  }
  Result<std::shared_ptr<Embedder>> OpenEmbedder(const ServedModel& model) override {
    ++opened;
    return std::shared_ptr<Embedder>(model.name == "rank" ? ranker : embedder);
  }

  static inline std::atomic<int> opened{0};
  static inline std::shared_ptr<SimpleEmbedder> embedder, ranker;

 private:
  Engine& engine_;
};

class EmbeddingsTest : public ServerTest {
 protected:
  void SetUp() override { StartThree({}); }

  void StartThree(const ServerOptions& options) {
    server_.reset();
    ThreeModels::opened = 0;
    ThreeModels::embedder = std::make_shared<SimpleEmbedder>();
    ThreeModels::ranker = std::make_shared<SimpleEmbedder>(true);
    auto server = Server::Start(std::make_unique<ThreeModels>(*engine_), options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  // Checks an error's status, and returns its object.
  Json Refused(const std::string& path, const Json& body, int status) const {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, status) << answer.body;
    return answer.json().value("error", Json());
  }
  bool HasLoaded(const std::string& name) const {
    const Json running = Get("/api/ps").json();
    for (const Json& model : running["models"]) {
      if (model["name"] == name + ":latest") return true;
    }
    return false;
  }
};

TEST_F(EmbeddingsTest, OpenAi) {
  Json answer = Post("/v1/embeddings", Json({{"model", "embed"}, {"input", "ab"}})).json();
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "embed");
  EXPECT_EQ(answer["usage"], Json({{"prompt_tokens", 2}, {"total_tokens", 2}}));
  ASSERT_EQ(answer["data"].size(), 1u);
  EXPECT_EQ(answer["data"][0]["object"], "embedding");
  EXPECT_EQ(answer["data"][0]["index"], 0);
  const auto vector = answer["data"][0]["embedding"].get<std::vector<float>>();
  ASSERT_EQ(vector.size(), 4u);
  float length = 0.0f;
  for (const float value : vector) length += value * value;
  EXPECT_NEAR(length, 1.0f, 1e-6f);
  // Every form of an input.
  const auto same = [&](const Json& input) {
    return Post("/v1/embeddings", Json({{"model", "embed"}, {"input", input}})).json()["data"];
  };
  EXPECT_EQ(same(Json::array({"ab"})), answer["data"]);
  EXPECT_EQ(same(Json::array({97, 98})), answer["data"]);
  EXPECT_EQ(same(Json::array({Json::array({97, 98})})), answer["data"]);
  const Json two = same(Json::array({"x", "ab"}));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1]["index"], 1);
  EXPECT_EQ(two[1]["embedding"], answer["data"][0]["embedding"]);
}

TEST_F(EmbeddingsTest, OpenAisDimensionsAndBase64) {
  Json body = {{"model", "embed"}, {"input", "a"}, {"dimensions", 1}};
  EXPECT_EQ(Post("/v1/embeddings", body).json()["data"][0]["embedding"], Json::array({1.0}));
  body["encoding_format"] = "base64";
  EXPECT_EQ(Post("/v1/embeddings", body).json()["data"][0]["embedding"], "AACAPw==");
  body["encoding_format"] = "float";
  EXPECT_EQ(Post("/v1/embeddings", body).json()["data"][0]["embedding"], Json::array({1.0}));
}

TEST_F(EmbeddingsTest, OpenAisErrors) {
  const auto refused = [&](const Json& more) {
    Json body = {{"model", "embed"}, {"input", "a"}};
    body.update(more);
    return Refused("/v1/embeddings", body, 400);
  };
  const Json format = refused({{"encoding_format", "int8"}});
  EXPECT_EQ(format["type"], "invalid_request_error");
  EXPECT_EQ(format["param"], "encoding_format");
  EXPECT_EQ(format["code"], Json());
  EXPECT_EQ(refused({{"dimensions", 5}})["param"], "dimensions");
  EXPECT_EQ(refused({{"dimensions", 0}})["param"], "dimensions");
  EXPECT_EQ(refused({{"input", nullptr}})["param"], "input");
  EXPECT_EQ(refused({{"input", ""}})["param"], "input");
  EXPECT_EQ(refused({{"input", Json::array()}})["param"], "input");
  EXPECT_EQ(refused({{"input", 3}})["param"], "input");
  EXPECT_EQ(refused({{"input", Json::array({"a", 3})}})["param"], "input[1]");
  EXPECT_EQ(refused({{"input", Json::array({1, -3})}})["param"], "input[1]");
  EXPECT_EQ(refused({{"input", Json::array({Json::array({1}), Json::array({"a"})})}})["param"],
            "input[1]");
  // A token that the model does not have, behind more inputs than are computed at once.
  EXPECT_EQ(refused({{"input", Json::array({1, 256})}})["param"], "input[1]");
  Json lists = Json::array();
  for (int i = 0; i < 300; ++i) lists.push_back(Json::array({1}));
  lists.push_back(Json::array({1, 699999}));
  const Json foreign = refused({{"input", lists}});
  EXPECT_EQ(foreign["param"], "input[300][1]");
  EXPECT_THAT(foreign["message"].get<std::string>(), HasSubstr("from 0 to 255"));
  const Json many = refused({{"input", Json(std::vector<std::string>(2049, "a"))}});
  EXPECT_THAT(many["message"].get<std::string>(), HasSubstr("1 to 2048"));
  const Json lengthy = refused({{"input", Json::array({"a", std::string(17, 'a')})}});
  EXPECT_EQ(lengthy["code"], "context_length_exceeded");
  EXPECT_EQ(lengthy["param"], "input[1]");
  EXPECT_THAT(lengthy["message"].get<std::string>(), HasSubstr("maximum context length is 16"));
  EXPECT_EQ(refused({{"input", Json::array({std::vector<int>(17, 1)})}})["code"],
            "context_length_exceeded");
  EXPECT_EQ(Refused("/v1/embeddings", Json({{"model", "x"}, {"input", "a"}}), 404)["code"],
            "model_not_found");
  EXPECT_EQ(Get("/v1/embeddings").status, 405);
}

TEST_F(EmbeddingsTest, Ollama) {
  Json answer = Post("/api/embed", Json({{"model", "embed"}, {"input", "ab"}})).json();
  EXPECT_EQ(answer["model"], "embed");
  EXPECT_EQ(answer["embeddings"].size(), 1u);
  EXPECT_EQ(answer["prompt_eval_count"], 2);
  EXPECT_GE(answer["total_duration"].get<std::int64_t>(),
            answer["load_duration"].get<std::int64_t>());
  const Json one = answer["embeddings"][0];
  answer =
      Post("/api/embed", Json({{"model", "embed"}, {"input", Json::array({"x", "ab"})}})).json();
  EXPECT_EQ(answer["embeddings"].size(), 2u);
  EXPECT_EQ(answer["embeddings"][1], one);
  // Long inputs are cut, unless the request says that they are not.
  const Json lengthy = {{"model", "embed"}, {"input", std::string(40, 'a')}};
  EXPECT_EQ(Post("/api/embed", lengthy).json()["prompt_eval_count"], 16);
  Json strict = lengthy;
  strict["truncate"] = false;
  EXPECT_THAT(Refused("/api/embed", strict, 400).get<std::string>(),
              HasSubstr("the input length exceeds the context length"));
  for (const Json& input : {Json(), Json(""), Json::array()}) {
    const Json empty = Post("/api/embed", Json({{"model", "embed"}, {"input", input}})).json();
    EXPECT_EQ(empty["embeddings"], Json::array()) << input;
  }
  EXPECT_EQ(Post("/api/embed", Json({{"model", "embed"}, {"input", "ab"}, {"dimensions", 2}}))
                .json()["embeddings"][0]
                .size(),
            2u);
  // Dimensions that shorten no vector have no effect, as in Ollama.
  for (const int dimensions : {-1, 0, 4, 5, 1 << 20}) {
    const Json all = {{"model", "embed"}, {"input", "ab"}, {"dimensions", dimensions}};
    EXPECT_EQ(Post("/api/embed", all).json()["embeddings"][0], one) << dimensions;
  }
  // The older route: one vector, of the length that the model gives it.
  answer = Post("/api/embeddings", Json({{"model", "embed"}, {"prompt", "ab"}})).json();
  EXPECT_EQ(answer, Json({{"embedding", {2, 97, 98, 195}}}));
  EXPECT_EQ(Post("/api/embeddings", Json({{"model", "embed"}})).json(),
            Json({{"embedding", Json::array()}}));
  EXPECT_EQ(Post("/api/embeddings", Json({{"model", "embed"}, {"keep_alive", 0}})).json(),
            Json({{"embedding", Json::array()}}));
}

TEST_F(EmbeddingsTest, ModelsThatEmbedHaveTokensToo) {
  const auto tokens = [&](const Json& more) {
    Json body = {{"model", "embed"}, {"content", "ab"}};
    body.update(more);
    return Post("/tokenize", body).json()["tokens"];
  };
  EXPECT_EQ(tokens(Json::object()), Json::array({97, 98}));
  EXPECT_EQ(tokens({{"model", "rank"}}), Json::array({97, 98}));
  EXPECT_EQ(tokens({{"add_special", true}}), Json::array({1, 97, 98}));
  EXPECT_EQ(tokens({{"content", std::string(40, 'a')}}).size(), 40u) << "more than an input has";
  EXPECT_EQ(tokens({{"content", "a"}, {"with_pieces", true}}),
            Json::array({Json({{"id", 97}, {"piece", "a"}})}));
  Json body = {{"model", "embed"}, {"tokens", {1, 97, 98}}};
  EXPECT_EQ(Post("/detokenize", body).json(), Json({{"content", "ab"}}));
  body["tokens"] = {97, 256};
  EXPECT_EQ(Post("/detokenize", body).status, 400);
  EXPECT_EQ(Post("/tokenize", Json({{"model", "embed"}})).status, 400);
}

TEST_F(EmbeddingsTest, Ranks) {
  const Json documents = Json::array({"bb", {{"text", "dddd"}}, "ccc", "bb"});
  Json body = {{"model", "rank"}, {"query", "q"}, {"documents", documents}};
  for (const char* path : {"/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"}) {
    const Json answer = Post(path, body).json();
    std::vector<int> order;
    for (const Json& result : answer["results"]) {
      order.push_back(result["index"]);
      EXPECT_FALSE(result.contains("document"));
    }
    EXPECT_THAT(order, ElementsAre(1, 2, 0, 3));
    EXPECT_EQ(answer["results"][0]["relevance_score"], 6.0);
    EXPECT_EQ(answer["model"], "rank");
    EXPECT_EQ(answer["usage"]["total_tokens"], 4 + 6 + 5 + 4);
    EXPECT_EQ(answer["meta"]["api_version"]["version"],
              path == std::string("/v2/rerank") ? "2" : "1");
    EXPECT_EQ(answer["meta"]["tokens"], Json({{"input_tokens", 19}, {"output_tokens", 0}}));
  }
  body["top_n"] = 2;
  body["return_documents"] = true;
  const Json answer = Post("/v1/rerank", body).json();
  ASSERT_EQ(answer["results"].size(), 2u);
  EXPECT_EQ(answer["results"][0]["document"], Json({{"text", "dddd"}}));
  const auto refused = [&](const Json& more) {
    Json wrong = body;
    wrong.update(more);
    return Refused("/v1/rerank", wrong, 400)["param"];
  };
  EXPECT_EQ(refused({{"query", ""}}), "query");
  EXPECT_EQ(refused({{"query", nullptr}}), "query");
  EXPECT_EQ(refused({{"documents", Json::array()}}), "documents");
  EXPECT_EQ(refused({{"documents", "a"}}), "documents");
  EXPECT_EQ(refused({{"documents", Json::array({"a", 3})}}), "documents[1]");
  EXPECT_EQ(refused({{"top_n", 0}}), "top_n");
  EXPECT_EQ(refused({{"model", "embed"}}), "model");
  EXPECT_EQ(refused({{"truncate", false}, {"documents", Json::array({std::string(20, 'a')})}}),
            "documents[0]");
}

TEST_F(EmbeddingsTest, RanksOfShortenedDocuments) {
  Json body = {{"model", "rank"},
               {"query", "q"},
               {"documents", Json::array({"bb", "dddd", "\u20ac\u20ac"})},
               {"max_tokens_per_doc", 3},
               {"return_documents", true}};
  const Json results = Post("/v2/rerank", body).json()["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["index"], 1);
  EXPECT_EQ(results[0]["relevance_score"], 5.0) << "'q', a separator and three tokens";
  EXPECT_EQ(results[0]["document"], Json({{"text", "dddd"}}));
  EXPECT_EQ(results[1]["index"], 2);
  EXPECT_EQ(results[1]["relevance_score"], 5.0);
  EXPECT_EQ(results[2]["relevance_score"], 4.0);
  body["max_tokens_per_doc"] = 0;
  EXPECT_EQ(Refused("/v2/rerank", body, 400)["param"], "max_tokens_per_doc");
}

// Cohere's second API reads 4,096 tokens of a document unless the request says otherwise.
TEST_F(EmbeddingsTest, RanksOfLongDocumentsAsCohere) {
  Json body = {{"model", "rank"},
               {"query", "q"},
               {"documents", Json::array({std::string(5000, 'a')})},
               {"truncate", false}};
  const auto message = [&](const char* path) {
    return Refused(path, body, 400)["message"].get<std::string>();
  };
  // The search for the longest beginning leaves out up to one token in 64.
  EXPECT_THAT(message("/v2/rerank"), HasSubstr("it has 40"));
  EXPECT_THAT(message("/v1/rerank"), HasSubstr("it has 5002 tokens"));
  body["max_tokens_per_doc"] = 4500;
  EXPECT_THAT(message("/v2/rerank"), HasSubstr("it has 44"));
}

TEST_F(EmbeddingsTest, RanksInTheFormOfTextEmbeddingsInference) {
  Json body = {{"model", "rank"}, {"query", "q"}, {"texts", Json::array({"b", "ccc", "dd"})}};
  const Json plain = Post("/rerank", body).json();
  ASSERT_TRUE(plain.is_array()) << plain;
  ASSERT_EQ(plain.size(), 3u);
  EXPECT_EQ(plain[0]["index"], 1);
  EXPECT_NEAR(plain[0]["score"].get<float>(), 1.0f / (1.0f + std::exp(-5.0f)), 1e-6f);
  EXPECT_FALSE(plain[0].contains("text"));
  body["raw_scores"] = true;
  body["return_text"] = true;
  const Json raw = Post("/rerank", body).json();
  EXPECT_EQ(raw[0], Json({{"index", 1}, {"score", 5.0}, {"text", "ccc"}}));
  EXPECT_EQ(raw[2], Json({{"index", 0}, {"score", 3.0}, {"text", "b"}}));
  body["texts"] = Json::array({"a", 3});
  EXPECT_EQ(Refused("/rerank", body, 400)["param"], "texts[1]");
  body["texts"] = Json::array({"a", std::string(20, 'a')});
  body["truncate"] = false;
  EXPECT_EQ(Refused("/rerank", body, 400)["param"], "texts[1]");
}

TEST_F(EmbeddingsTest, RanksAsProbabilities) {
  const Json body = {
      {"model", "rank"}, {"query", "q"}, {"documents", Json::array({"a"})}, {"raw_scores", false}};
  const Json results = Post("/v1/rerank", body).json()["results"];
  EXPECT_NEAR(results[0]["relevance_score"].get<float>(), 1.0f / (1.0f + std::exp(-3.0f)), 1e-6f);
}

TEST_F(EmbeddingsTest, RanksOfLongTexts) {
  const auto refused = [&](const std::string& query, const std::string& document) {
    return Refused("/v1/rerank",
                   Json({{"model", "rank"},
                         {"query", query},
                         {"documents", Json::array({"a", document})},
                         {"truncate", false}}),
                   400);
  };
  const Json lengthy = refused("q", std::string(20, 'a'));
  EXPECT_EQ(lengthy["param"], "documents[1]");
  EXPECT_EQ(lengthy["code"], "context_length_exceeded");
  const Json query = refused(std::string(20, 'q'), "a");
  EXPECT_EQ(query["param"], "query");
  EXPECT_EQ(query["code"], "context_length_exceeded");
}

TEST_F(EmbeddingsTest, ModelsLiveInOneHost) {
  EXPECT_FALSE(HasLoaded("embed"));
  EXPECT_EQ(Post("/api/embed", Json({{"input", "ab"}})).json()["model"], "embed");
  EXPECT_TRUE(HasLoaded("embed"));
  EXPECT_EQ(ThreeModels::opened, 1);
  EXPECT_EQ(
      Post("/v1/rerank", Json({{"query", "q"}, {"documents", Json::array({"a"})}})).json()["model"],
      "rank");
  EXPECT_EQ(ThreeModels::opened, 2);
  // What a model is for.
  const auto capabilities = [&](const std::string& name) {
    return Post("/api/show", Json({{"model", name}})).json()["capabilities"];
  };
  EXPECT_EQ(capabilities("embed"), Json::array({"embedding"}));
  EXPECT_EQ(capabilities("rank"), Json::array({"rerank"}));
  EXPECT_EQ(capabilities("story")[0], "completion");
  const Json shown = Post("/api/show", Json({{"model", "embed"}})).json()["model_info"];
  EXPECT_EQ(shown["simple.embedding_length"], 384);
  EXPECT_EQ(Get("/v1/models/embed").json()["capabilities"], Json::array({"embedding"}));
  EXPECT_EQ(Get("/v1/models").json()["data"].size(), 3u);
  Json chat = Chat("Hello");
  chat["model"] = "embed";
  EXPECT_EQ(Refused("/v1/chat/completions", chat, 400)["param"], "model");
  EXPECT_THAT(Refused("/api/chat", chat, 400).get<std::string>(),
              HasSubstr("does not support chat"));
  // A model that generates embeds too, loaded for that.
  EXPECT_EQ(Post("/api/embed", Json({{"model", "story"}, {"input", "ab"}})).status, 200);
  EXPECT_EQ(ThreeModels::opened, 3);
  EXPECT_FALSE(ChatText(Chat("Hello")).empty());
  // What looks at caches looks at those that there are.
  for (const char* path : {"/state", "/slots", "/props", "/metrics", "/v1/models", "/api/ps"}) {
    EXPECT_EQ(Get(path).status, 200) << path;
  }
  EXPECT_EQ(Get("/state").json()["model"], "story");
  EXPECT_EQ(Get("/state?model=embed").json()["model"], Json());
  // It goes as any other.
  EXPECT_EQ(Post("/api/embed", Json({{"model", "embed"}, {"keep_alive", 0}})).status, 200);
  for (int i = 0; i < 400 && HasLoaded("embed"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(HasLoaded("embed"));
}

TEST_F(EmbeddingsTest, AClientThatLeavesEndsTheWork) {
  ThreeModels::embedder->waits = true;
  {
    Client client(server_->port());
    const std::string body = Json({{"model", "embed"}, {"input", "ab"}}).dump();
    (void)client.Write(StrCat("POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                              body.size(), "\r\n\r\n", body));
    for (int i = 0; i < 1000 && ThreeModels::embedder->calls == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(ThreeModels::embedder->calls, 1);
  }
  for (int i = 0; i < 1000 && ThreeModels::embedder->interrupted == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(ThreeModels::embedder->interrupted, 1);
  EXPECT_TRUE(BecomesIdle());
  ThreeModels::embedder->waits = false;
  EXPECT_EQ(Post("/api/embed", Json({{"model", "embed"}, {"input", "ab"}})).status, 200);
}

// An answer that is larger than what a client may leave unread still comes.
TEST_F(EmbeddingsTest, LargeAnswers) {
  const std::vector<std::string> inputs(2048, "abcdefghijklmnop");
  StartThree({.http = {.output_bytes = 10'000}});
  const HttpAnswer answer = Post("/v1/embeddings", Json({{"model", "embed"}, {"input", inputs}}));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json()["data"].size(), 2048u);
  EXPECT_GT(answer.body.size(), 100'000u);
}

}  // namespace
}  // namespace kvcache::server::embeddings_test
