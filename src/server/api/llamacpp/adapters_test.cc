// Adapters of a server: chosen by llama.cpp's fields, by the names of models, or by nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gguf/gguf.h"
#include "server/server_testing.h"
#include "support/random_adapter.h"

namespace kvcache::server {
namespace {

using ::testing::HasSubstr;

class AdapterServerTest : public ServerTest {
 protected:
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

// The vectors of the weights alone are never those of an adapter.
TEST_F(AdapterServerTest, EmbeddingsRefuseAdaptersByName) {
  const auto refusal = [&](const std::string& model, const Json& lora) {
    Json body = {{"model", model}, {"input", "Once"}};
    if (!lora.is_null()) body["lora"] = lora;
    std::string message;
    for (const char* path : {"/v1/embeddings", "/api/embed"}) {
      const HttpAnswer answer = Post(path, body);
      EXPECT_EQ(answer.status, 400) << path << answer.body;
      message = answer.body;
    }
    return message;
  };
  EXPECT_THAT(refusal("pirate", nullptr), HasSubstr("'pirate' is an adapter"));
  EXPECT_THAT(refusal("story", nullptr), HasSubstr("'story' has the adapter 'pirate'"));
  EXPECT_THAT(refusal("story", One(0, 1.0)), HasSubstr("'lora' is [{"));
  EXPECT_THAT(refusal("pirate", Json::array()), HasSubstr("'pirate' is an adapter"));
  const Json none = {{"model", "story"}, {"input", "Once"}, {"lora", Json::array()}};
  EXPECT_THAT(Post("/v1/embeddings", none).body, ::testing::Not(HasSubstr("adapter 'pirate'")));
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

}  // namespace
}  // namespace kvcache::server
