// Requests with pictures, in the forms of all APIs, for a model that takes them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/pictures/picture_rows.h"
#include "server/request/data_url.h"
#include "server/server_testing.h"
#include "support/pictures/picture_model.h"

namespace kvcache::server::picture_requests_test {
namespace {

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

class PictureRequestsTest : public ServerTest {
 protected:
  static void SetUpTestSuite() {
    const std::string name = ::testing::TempDir() + "picture_server." + std::to_string(getpid());
    model_ = name + ".gguf";
    tower_ = name + ".mmproj.gguf";
    picture_test::MakePictureModel(model_, tower_);
    engine_ = std::move(Engine::Open(model_, {.threads = 1, .context = 512, .max_sequences = 2}))
                  .value()
                  .release();
    ASSERT_TRUE(engine_->UseTower(tower_).ok());
  }
  static void TearDownTestSuite() {
    delete std::exchange(engine_, nullptr);
    std::filesystem::remove(model_);
    std::filesystem::remove(tower_);
  }

  static std::string Data(int color = 0x4080c0) {
    return Base64(picture_test::BmpOf(50, 40, color));
  }
  static std::string Url(int color = 0x4080c0) { return "data:image/bmp;base64," + Data(color); }
  static Json User(Json content) {
    return Json::array({{{"role", "user"}, {"content", std::move(content)}}});
  }
  static Json Text(const char* type = "text") {
    return {{"type", type}, {"text", "What is this?"}};
  }
  static Json OpenAi(const std::string& url) {
    return User(Json::array({{{"type", "image_url"}, {"image_url", {{"url", url}}}}, Text()}));
  }

  static inline std::string model_, tower_;
};

TEST_F(PictureRequestsTest, AllApisTakeTheSamePicture) {
  const Json anthropic = User(Json::array(
      {{{"type", "image"},
        {"source", {{"type", "base64"}, {"media_type", "image/bmp"}, {"data", Data()}}}},
       Text()}));
  Json ollama = User("What is this?");
  ollama[0]["images"] = Json::array({Data()});
  const Json responses =
      User(Json::array({{{"type", "input_image"}, {"image_url", Url()}}, Text("input_text")}));
  const Json options = {{"num_predict", 3}, {"temperature", 0}};
  const std::vector<std::pair<const char*, Json>> requests = {
      {"/v1/chat/completions", {{"messages", OpenAi(Url())}, {"max_tokens", 3}}},
      {"/v1/messages", {{"messages", anthropic}, {"max_tokens", 3}}},
      {"/v1/responses", {{"input", responses}, {"max_output_tokens", 3}}},
      {"/api/chat", {{"messages", ollama}, {"stream", false}, {"options", options}}},
      {"/api/generate",
       {{"prompt", "What is this?"},
        {"images", Json::array({Data()})},
        {"stream", false},
        {"options", options}}},
  };
  for (const auto& [path, body] : requests) {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 200) << path << answer.body;
    ASSERT_TRUE(BecomesIdle());
    EXPECT_EQ(engine_->pictures()->runs(), 1) << path;  // all share the first one's prefix
  }
}

TEST_F(PictureRequestsTest, PenaltiesPassOverThePicture) {
  for (const char* const penalty : {"presence_penalty", "frequency_penalty", "repeat_penalty"}) {
    const HttpAnswer answer = Post(
        "/v1/chat/completions",
        Json{{"messages", OpenAi(Url())}, {"max_tokens", 3}, {"temperature", 1}, {penalty, 1.5}});
    EXPECT_EQ(answer.status, 200) << penalty << answer.body;
  }
}

TEST_F(PictureRequestsTest, PromptsHaveThePictureInItsPlace) {
  const HttpAnswer prompt = Post("/apply-template", Json{{"messages", OpenAi(Url())}});
  ASSERT_EQ(prompt.status, 200) << prompt.body;
  const auto text = prompt.json()["prompt"].get<std::string>();
  EXPECT_NE(text.find("<start_of_turn>user\n\n\n<start_of_image>"), std::string::npos) << text;
  EXPECT_NE(text.find("<end_of_image>\n\nWhat is this?<end_of_turn>"), std::string::npos) << text;
}

TEST_F(PictureRequestsTest, AToolsResultMayHaveAPicture) {
  const Json content = Json::array(
      {{{"type", "image"}, {"source", {{"type", "base64"}, {"data", Data(0x102030)}}}}});
  const Json messages = Json::array(
      {{{"role", "user"}, {"content", "Look."}},
       {{"role", "assistant"},
        {"content",
         Json::array(
             {{{"type", "tool_use"}, {"id", "t"}, {"name", "see"}, {"input", Json::object()}}})}},
       {{"role", "user"},
        {"content",
         Json::array({{{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", content}}})}}});
  const HttpAnswer answer = Post("/v1/messages", Json{{"messages", messages}, {"max_tokens", 2}});
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST_F(PictureRequestsTest, AStoredConversationKeepsItsPicture) {
  const Json input = User(
      Json::array({{{"type", "input_image"}, {"image_url", Url(0x204060)}}, Text("input_text")}));
  const HttpAnswer first =
      Post("/v1/responses", Json{{"input", input}, {"max_output_tokens", 3}, {"store", true}});
  ASSERT_EQ(first.status, 200) << first.body;
  const HttpAnswer second = Post("/v1/responses", Json{{"input", "And now?"},
                                                       {"previous_response_id", first.json()["id"]},
                                                       {"max_output_tokens", 3}});
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_GT(second.json()["usage"]["input_tokens_details"]["cached_tokens"].get<int>(), 20);
  const std::string id = first.json()["id"];
  const Json items = Get("/v1/responses/" + id + "/input_items").json()["data"];
  ASSERT_EQ(items.size(), 1U) << items;
  EXPECT_EQ(items[0]["content"][0]["type"], "input_image") << items;
  EXPECT_EQ(items[0]["content"][1]["text"], "What is this?") << items;
}

TEST_F(PictureRequestsTest, CompletionsReadThePictureOfATextAndInfillRefusesIt) {
  Json body = {
      {"prompt", "What is this?"}, {"n_predict", 1}, {"images", Json::array({Data(0x908070)})}};
  const std::int64_t runs = engine_->pictures()->runs();
  const HttpAnswer answer = Post("/completion", body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  ASSERT_TRUE(BecomesIdle());
  EXPECT_EQ(engine_->pictures()->runs(), runs + 1);
  const auto prompt = answer.json()["prompt"].get<std::string>();
  EXPECT_NE(prompt.find("What is this?"), std::string::npos) << prompt;
  EXPECT_EQ(prompt.find("[picture "), std::string::npos) << prompt;
  body["input_prefix"] = "a";
  body["input_suffix"] = "b";
  const HttpAnswer infill = Post("/infill", body);
  EXPECT_EQ(infill.status, 400) << infill.body;
  EXPECT_NE(infill.body.find("/infill takes no pictures"), std::string::npos) << infill.body;
}

// Equal pictures count in each of their places.
TEST_F(PictureRequestsTest, PicturesOfARequestFitIntoTheContext) {
  const auto with = [this](int count, auto color_of) {
    Json content = Json::array();
    for (int i = 0; i < count; ++i) {
      content.push_back({{"type", "image_url"}, {"image_url", {{"url", Url(color_of(i))}}}});
    }
    content.push_back(Text());
    return Post("/v1/chat/completions", Json{{"messages", User(content)}, {"max_tokens", 1}});
  };
  const HttpAnswer some = with(3, [](int) { return 0x305070; });
  EXPECT_EQ(some.status, 200) << some.body;
  for (const int step : {0, 1}) {
    const HttpAnswer many = with(400, [&](int i) { return 0x305070 + 2 * step * i; });
    EXPECT_EQ(many.status, 400) << many.body;
    EXPECT_NE(many.body.find("the pictures of the request up to picture "), std::string::npos)
        << many.body;
    EXPECT_NE(many.body.find("the context has 512"), std::string::npos) << many.body;
    EXPECT_EQ(many.body.find("picture 400 "), std::string::npos) << many.body;  // stops before
  }
}

TEST_F(PictureRequestsTest, WrongPicturesAreRefusedWithTheirPlace) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"https://example.com/a.png", "fetches nothing"},
      {"data:image/png,abc", "must be a data URL"},
      {"data:image/png;base64,A$AA", "no base64"},
      {"data:image/png;base64,AAAA", "picture 1"},
  };
  for (const auto& [url, reason] : cases) {
    const HttpAnswer refused =
        Post("/v1/chat/completions", Json{{"messages", OpenAi(url)}, {"max_tokens", 2}});
    EXPECT_EQ(refused.status, 400) << url << refused.body;
    EXPECT_NE(refused.body.find(reason), std::string::npos) << url << refused.body;
  }
  const HttpAnswer place =
      Post("/v1/chat/completions", Json{{"messages", OpenAi("x")}, {"max_tokens", 2}});
  EXPECT_NE(place.body.find("messages[0].content[0]"), std::string::npos) << place.body;
}

TEST_F(PictureRequestsTest, ShowSaysVision) {
  const HttpAnswer shown = Post("/api/show", Json{{"model", "story"}});
  ASSERT_EQ(shown.status, 200) << shown.body;
  const Json capabilities = shown.json()["capabilities"];
  EXPECT_NE(std::find(capabilities.begin(), capabilities.end(), "vision"), capabilities.end());
}

TEST(DataUrlTest, DecodesBase64) {
  for (const std::string_view bytes : {"a", "ab", "abc", "abcd", "\xff\xfe\xfd"}) {
    const std::string text = Base64(bytes);
    for (const std::string& form : {text, text.substr(0, text.find('=')), text + "\n"}) {
      const auto decoded = DecodeBase64(form);
      ASSERT_TRUE(decoded.ok()) << form << decoded.status().message();
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(decoded->data()), decoded->size()),
                bytes);
    }
  }
  for (const char* wrong : {"", "A", "A===", "AAAAA", "AB", "A-AA", "====", "A=AA"}) {
    EXPECT_FALSE(DecodeBase64(wrong).ok()) << wrong;
  }
  EXPECT_TRUE(ReadDataUrl("DATA:image/png;base64,AAAA").ok());
  EXPECT_FALSE(ReadDataUrl("data:image/png;base64").ok());
}

}  // namespace
}  // namespace kvcache::server::picture_requests_test
