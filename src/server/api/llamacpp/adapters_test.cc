// Adapters of a server: chosen by llama.cpp's fields, by the names of models, or by nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gguf/gguf.h"
#include "server/embedder_testing.h"
#include "server/server_testing.h"
#include "support/random_adapter.h"

namespace kvcache::server {
namespace {

using ::testing::HasSubstr;

class AdapterServerTest : public ServerTest {
 public:
  static void SetUpTestSuite() {
    const std::string path = std::string(KVCACHE_SOURCE_DIR) + "/models/story.gguf";
    const auto base = GgufFile::Open(path).value();
    std::vector<EngineAdapter> adapters{testing::MakeAdapter(*base, {.largest = 0.3f}),
                                        testing::MakeAdapter(*base, {.seed = 2, .largest = 0.3f})};
    adapters[0].scale = 0.0f;
    adapters[1].scale = 0.0f;
    engine_ = std::move(Engine::Open(path, {.threads = 2,
                                            .context = 512,
                                            .max_sequences = 4,
                                            .adapters = std::move(adapters)}))
                  .value()
                  .release();
  }

 protected:
  void SetUp() override {
    server_.reset();
    ServedModel model{.name = "story"};
    model.adapters = {{.name = "pirate", .path = "/x/pirate.gguf"},
                      {.name = "poet", .path = "/x/poet.gguf", .scale = 0.5f}};
    auto server = Server::Start(*engine_, model, {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  std::string Text(const Json& lora = nullptr, const std::string& model = "story",
                   const std::string& prompt = "Once upon a time there was") const {
    Json body = {{"model", model}, {"prompt", prompt}, {"n_predict", 12}, {"temperature", 0}};
    if (!lora.is_null()) body["lora"] = lora;
    const HttpAnswer answer = Post("/completion", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? answer.json()["content"].get<std::string>() : answer.body;
  }
  static Json One(int id, double scale) { return Json::array({{{"id", id}, {"scale", scale}}}); }
  // Asks for the text that Text returns, as a stream and longer.
  static void StartStream(Client& client, const Json& lora) {
    const Json body = {{"prompt", "Once upon a time there was"},
                       {"n_predict", 400},
                       {"temperature", 0},
                       {"stream", true},
                       {"lora", lora}};
    const std::string text = body.dump();
    EXPECT_TRUE(
        client.Write(StrCat("POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                            "Content-Length: ", text.size(), "\r\n\r\n", text)));
  }
};

TEST_F(AdapterServerTest, ARequestChoosesByNumberAndScale) {
  const std::string plain = Text();
  const std::string pirate = Text(One(0, 1.0));
  const std::string poet = Text(One(1, 1.0));
  EXPECT_NE(pirate, plain);
  EXPECT_NE(poet, plain);
  EXPECT_NE(poet, pirate);
  EXPECT_EQ(Text(Json::array()), plain);
  EXPECT_EQ(Text(One(0, 0.0)), plain);
  EXPECT_EQ(Text(Json::array({{{"id", 0}}})), plain) << "a scale that is not given is 0";
  EXPECT_EQ(Text(), plain) << "other requests leave nothing";
  EXPECT_EQ(Text(One(0, 1.0)), pirate);
}

TEST_F(AdapterServerTest, WrongChoicesAreRefusedByName) {
  const auto refusal = [&](const Json& lora) {
    Json body = {{"prompt", "Once"}, {"n_predict", 2}, {"lora", lora}};
    const HttpAnswer answer = Post("/completion", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.body;
  };
  EXPECT_THAT(refusal(5), HasSubstr("'lora' is 5; must be an array"));
  EXPECT_THAT(refusal(One(2, 1.0)), HasSubstr("'lora' has an entry with 'id' 2; the model has 2"));
  EXPECT_THAT(refusal(Json::array({7})), HasSubstr("'lora' has an entry"));
  EXPECT_THAT(refusal(Json::array({{{"id", 0}, {"scale", "x"}}})), HasSubstr("'scale'"));
  EXPECT_THAT(refusal(One(0, 3e38)), HasSubstr("'scale' 3e+38; must be a number from -10000 to"));
  EXPECT_THAT(refusal(One(0, -1e300)), HasSubstr("'scale' -1e+300; must be"));
  Json twice = One(0, 1.0);
  twice.push_back(twice[0]);
  EXPECT_THAT(refusal(twice), HasSubstr("'lora' has 'id' 0 twice"));
}

TEST_F(AdapterServerTest, AnAdapterIsAModelOfItsOwn) {
  const Json models = Get("/v1/models").json()["data"];
  ASSERT_EQ(models.size(), 3);
  EXPECT_EQ(models[0]["id"], "story");
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[1]["id"], "pirate");
  EXPECT_EQ(models[1]["parent"], "story");
  EXPECT_EQ(models[2]["id"], "poet");
  EXPECT_EQ(Text(nullptr, "pirate"), Text(One(0, 1.0)));
  EXPECT_EQ(Text(nullptr, "poet"), Text(One(1, 0.5))) << "with its scale of the command line";
  EXPECT_EQ(Text(One(0, 1.0), "poet"), Text(One(0, 1.0))) << "the request's own choice counts";
  Json chat = Chat("Hi", 8);
  const std::string plain = ChatText(chat);
  chat["model"] = "pirate";
  const HttpAnswer answer = Post("/v1/chat/completions", chat);
  EXPECT_EQ(answer.json()["model"], "pirate");
  EXPECT_NE(answer.json()["choices"][0]["message"]["content"], plain);
}

TEST_F(AdapterServerTest, TheScalesOfOtherRequestsAreShownAndSet) {
  const Json begin = Json::array({{{"id", 0}, {"path", "pirate"}, {"scale", 0.0}},
                                  {{"id", 1}, {"path", "poet"}, {"scale", 0.0}}});
  EXPECT_EQ(Get("/lora-adapters").json(), begin);
  const std::string plain = Text();
  EXPECT_EQ(Post("/lora-adapters", One(1, 1.0)).json(), (Json{{"success", true}}));
  EXPECT_EQ(Get("/lora-adapters").json()[1]["scale"], 1.0);
  EXPECT_EQ(Text(), Text(One(1, 1.0)));
  EXPECT_EQ(Text(Json::array()), plain) << "a request may have none";
  EXPECT_EQ(Text(nullptr, "pirate"), Text(One(0, 1.0)));
  EXPECT_EQ(Post("/lora-adapters", Json::array()).status, 200);
  EXPECT_EQ(Text(), plain);
  for (const Json& wrong : {Json::object(), One(9, 1.0), Json::array({1})}) {
    EXPECT_EQ(Post("/lora-adapters", wrong).status, 400) << wrong;
  }
}

TEST_F(AdapterServerTest, ScalesOutliveAModelThatIsUnloaded) {
  EXPECT_EQ(Post("/lora-adapters", One(1, 0.5)).status, 200);
  const std::string before = Text();
  const HttpAnswer gone = Post("/api/generate", {{"model", "story"}, {"keep_alive", 0}});
  EXPECT_EQ(gone.json()["done_reason"], "unload") << gone.body;
  EXPECT_EQ(Get("/lora-adapters").json()[1]["scale"], 0.5);
  EXPECT_EQ(Text(), before);
}

TEST_F(AdapterServerTest, RequestsAtOnceHaveTheirOwnTexts) {
  const std::vector<Json> choices{nullptr, One(0, 1.0), One(1, 1.0), One(0, 0.5)};
  const std::string prompt = "The dog and the cat went to the big";
  std::vector<std::string> alone, together(choices.size());
  for (const Json& lora : choices) alone.push_back(Text(lora, "story", prompt));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = Text(choices[i], "story", prompt); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

// What a request with an adapter leaves behind when its client goes, or when its model is to be unloaded meanwhile.
TEST_F(AdapterServerTest, ACancelledRequestLeavesNothingOfItsAdapter) {
  const std::string plain = Text();
  const std::string pirate = Text(One(0, 1.0));
  {
    Client client(server_->port());
    StartStream(client, One(0, 1.0));
    EXPECT_THAT(client.Read("data: "), HasSubstr("data: "));
  }
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(Text(), plain);
  EXPECT_EQ(Text(One(0, 1.0)), pirate);
}

TEST_F(AdapterServerTest, AModelThatIsUnloadedEndsItsRequestsFirst) {
  const std::string pirate = Text(One(0, 1.0));
  Client client(server_->port());
  StartStream(client, One(0, 1.0));
  std::string answer = client.Read("data: ");
  const HttpAnswer gone = Post("/api/generate", {{"model", "story"}, {"keep_alive", 0}});
  EXPECT_EQ(gone.json()["done_reason"], "unload") << gone.body;
  answer += client.Read();
  std::string text;
  for (const Json& event : Events(Parse(answer).body)) text += event.value("content", "");
  EXPECT_TRUE(text.starts_with(pirate)) << answer;
  EXPECT_GT(text.size(), pirate.size());
  EXPECT_EQ(Text(One(0, 1.0)), pirate) << "the model comes back with its adapters";
}

TEST_F(AdapterServerTest, ProbesSeeThePrefixesOfTheirAdapter) {
  const auto cached = [&](const Json& lora) {
    Json body = {{"prompt", "A fox and a hen and a cow and a sheep lived"}};
    if (!lora.is_null()) body["lora"] = lora;
    const Json probe = Post("/probe", body).json();
    return probe.value("cached_tokens", probe.value("resumed", -1));
  };
  (void)Text(One(0, 1.0), "story", "A fox and a hen and a cow and a sheep lived");
  EXPECT_GT(cached(One(0, 1.0)), 4);
  EXPECT_EQ(cached(nullptr), 0);
  EXPECT_EQ(cached(One(1, 1.0)), 0);
}

// A model that embeds, or one that ranks, whose values tell the sum of the scales.
class OneEmbedder final : public ModelSource {
 public:
  explicit OneEmbedder(std::shared_ptr<SimpleEmbedder> embedder) : embedder_(std::move(embedder)) {
    const bool ranks = embedder_->info().is_reranker;
    model_ = {.name = "simple", .path = "simple"};
    model_.purpose = ranks ? FilePurpose::kReranking : FilePurpose::kEmbedding;
    model_.adapters = {{.name = "pirate", .path = "/x/pirate.gguf", .scale = 0.0f},
                       {.name = "poet", .path = "/x/poet.gguf", .scale = 0.5f}};
    embedder_->known_adapters = {{.path = "/x/pirate.gguf", .scale = 0.0f},
                                 {.path = "/x/poet.gguf", .scale = 0.5f}};
  }

  std::vector<ServedModel> List() override { return WithAdapters(model_); }
  Result<ServedModel> Find(const std::string& name) override {
    for (ServedModel& model : List()) {
      if (MeansModel(name, model.name)) return model;
    }
    return Status(StatusCode::kNotFound, "no such model");
  }
  Result<std::shared_ptr<Engine>> Open(const ServedModel& /*model*/) override {
    return Status(StatusCode::kUnsupported, "it does not generate");
  }
  Result<std::shared_ptr<Embedder>> OpenEmbedder(const ServedModel& /*model*/) override {
    return std::shared_ptr<Embedder>(embedder_);
  }

 private:
  const std::shared_ptr<SimpleEmbedder> embedder_;
  ServedModel model_;
};

class AdaptersOfEmbeddings : public ServerTest {
 protected:
  void SetUp() override { Start(false); }
  void Start(bool ranks) {
    server_.reset();
    auto source = std::make_unique<OneEmbedder>(std::make_shared<SimpleEmbedder>(ranks));
    auto server = Server::Start(std::move(source), {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  static Json One(int id, double scale) { return Json::array({{{"id", id}, {"scale", scale}}}); }
  static Json Body(const std::string& model, const Json& lora, Json body) {
    body["model"] = model;
    if (!lora.is_null()) body["lora"] = lora;
    return body;
  }
  // Returns the sum of the scales that the values of "a", a token of 97, tell.
  double Scale(const std::string& path, const Json& lora = nullptr,
               const std::string& model = "simple") const {
    const HttpAnswer answer = Post(path, Body(model, lora, {{"input", "a"}}));
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (answer.status != 200) return -1.0;
    const Json json = answer.json();
    const Json& vector =
        path == "/api/embed" ? json["embeddings"][0] : json["data"][0]["embedding"];
    return 97.0 * (vector[3].get<double>() / vector[1].get<double>() - 1.0);
  }
};

TEST_F(AdaptersOfEmbeddings, AreChosenLikeThoseOfTexts) {
  for (const char* const path : {"/v1/embeddings", "/api/embed"}) {
    SCOPED_TRACE(path);
    EXPECT_NEAR(Scale(path), 0.5, 1e-3) << "the scales of the command line";
    EXPECT_NEAR(Scale(path, Json::array()), 0.0, 1e-3);
    EXPECT_NEAR(Scale(path, One(0, 3.0)), 3.0, 1e-3);
    EXPECT_NEAR(Scale(path, nullptr, "pirate"), 1.0, 1e-3);
    EXPECT_NEAR(Scale(path, nullptr, "poet"), 0.5, 1e-3);
    EXPECT_NEAR(Scale(path, One(1, -2.0), "pirate"), -2.0, 1e-3);
    const HttpAnswer wrong = Post(path, Body("simple", One(2, 1.0), {{"input", "a"}}));
    EXPECT_EQ(wrong.status, 400);
    EXPECT_THAT(wrong.body, HasSubstr("'lora' has an entry with 'id' 2; the model has 2 adapters"));
  }
  Json models = Json::array();
  const Json listed = Get("/v1/models").json();
  for (const Json& model : listed["data"]) models.push_back(model["id"]);
  EXPECT_EQ(models, Json({"simple", "pirate", "poet"}));
}

TEST_F(AdaptersOfEmbeddings, ScalesThatAreSetLaterCount) {
  EXPECT_EQ(Get("/lora-adapters").json()[1]["scale"], 0.5);
  EXPECT_EQ(Post("/lora-adapters", One(0, 4.0)).status, 200);
  EXPECT_NEAR(Scale("/v1/embeddings"), 4.0, 1e-3);
  EXPECT_NEAR(Scale("/v1/embeddings", One(1, 2.0)), 2.0, 1e-3);
  // Also after the model was unloaded.
  EXPECT_EQ(Post("/api/embed", {{"model", "simple"}, {"keep_alive", 0}}).status, 200);
  EXPECT_NEAR(Scale("/v1/embeddings"), 4.0, 1e-3);
  EXPECT_EQ(Get("/lora-adapters").json()[0]["scale"], 4.0);
}

TEST_F(AdaptersOfEmbeddings, RanksHaveThemToo) {
  Start(true);
  const auto score = [&](const Json& lora, const std::string& model = "simple") {
    const Json body = {{"query", "a"}, {"documents", Json::array({"b"})}};
    const HttpAnswer answer = Post("/v1/rerank", Body(model, lora, body));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? answer.json()["results"][0]["relevance_score"].get<double>() : 0;
  };
  EXPECT_EQ(score(nullptr), 3.5);
  EXPECT_EQ(score(Json::array()), 3.0);
  EXPECT_EQ(score(One(0, 2.0)), 5.0);
  EXPECT_EQ(score(nullptr, "pirate"), 4.0);
  EXPECT_EQ(Post("/lora-adapters", One(0, 4.0)).status, 200);
  EXPECT_EQ(score(nullptr), 7.0);
}

// A model that is loaded to generate and to embed has one list of scales.
class BothUses final : public ModelSource {
 public:
  explicit BothUses(Engine& engine) : engine_(engine) {
    model_.adapters = {{.name = "pirate", .path = "/x/pirate.gguf", .scale = 0.0f},
                       {.name = "poet", .path = "/x/poet.gguf", .scale = 0.0f}};
    embedder_->known_adapters = {{.scale = 0.0f}, {.scale = 0.0f}};
  }
  std::vector<ServedModel> List() override { return {model_}; }
  Result<ServedModel> Find(const std::string& /*name*/) override { return model_; }
  Result<std::shared_ptr<Engine>> Open(const ServedModel& /*model*/) override {
    return std::shared_ptr<Engine>(&engine_, [](Engine*) {});
  }
  Result<std::shared_ptr<Embedder>> OpenEmbedder(const ServedModel& /*model*/) override {
    return std::shared_ptr<Embedder>(embedder_);
  }

 private:
  Engine& engine_;
  ServedModel model_{.name = "simple", .path = "simple"};
  const std::shared_ptr<SimpleEmbedder> embedder_ = std::make_shared<SimpleEmbedder>();
};

class AdaptersOfBothUses : public AdaptersOfEmbeddings {
 protected:
  static void SetUpTestSuite() { AdapterServerTest::SetUpTestSuite(); }
  void SetUp() override {
    server_.reset();
    auto server = Server::Start(std::make_unique<BothUses>(*engine_), {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
};

TEST_F(AdaptersOfBothUses, HaveOneListOfScales) {
  EXPECT_NEAR(Scale("/v1/embeddings"), 0.0, 1e-3);
  EXPECT_EQ(Post("/lora-adapters", One(1, 2.0)).status, 200);
  EXPECT_NEAR(Scale("/v1/embeddings"), 2.0, 1e-3);
  EXPECT_EQ(Get("/lora-adapters").json()[1]["scale"], 2.0);
}

}  // namespace
}  // namespace kvcache::server
