#include "server/request/pictures.h"

#include <gtest/gtest.h>

#include "server/server_testing.h"

namespace kvcache::server::pictures_test {
namespace {

constexpr const char* kNote = "[A picture was here. This model reads text only.]";

Json Part(const char* type, const char* key, const Json& value) {
  return {{"type", type}, {key, value}};
}

TEST(Pictures, NotesStandInTheirPlaces) {
  const Json text = Part("text", "text", "Look:");
  const Json after = Part("text", "text", "What is it?");
  for (const Json& picture :
       {Part("image_url", "image_url", {{"url", "data:image/png;base64,AA=="}}),
        Part("image", "source", {{"type", "base64"}, {"data", "AA=="}}),
        Part("input_image", "image_url", "data:image/png;base64,AA==")}) {
    Json body = {{"messages", Json::array({{{"role", "user"},
                                            {"content", Json::array({text, picture, after})}}})}};
    ReplacePictures(body);
    const Json content = body["messages"][0]["content"];
    EXPECT_EQ(content, Json::array({text, Part("text", "text", StrCat("\n", kNote, "\n")), after}));
  }
}

TEST(Pictures, ResultsOfToolsAndOtherPartsHaveNotes) {
  Json picture = Part("image", "source", Json::object());
  picture["cache_control"] = {{"type", "ephemeral"}};
  const Json result = {{"type", "tool_result"}, {"content", Json::array({picture})}};
  Json body = {{"messages", Json::array({{{"role", "user"}, {"content", Json::array({result})}}})}};
  ReplacePictures(body);
  const Json note = body["messages"][0]["content"][0]["content"][0];
  EXPECT_EQ(note["text"], kNote);
  EXPECT_TRUE(note.contains("cache_control"));
  Json items = {{"input", Json::array({{{"type", "function_call_output"},
                                        {"output", Json::array({Part("input_file", "f", 1)})}}})}};
  ReplacePictures(items);
  EXPECT_EQ(items["input"][0]["output"][0]["text"],
            "[A file was here. This model reads text only.]");
}

TEST(Pictures, OllamasListsBecomeNotes) {
  Json body = {{"messages", Json::array({{{"role", "user"},
                                          {"content", "What is it?"},
                                          {"images", Json::array({"AA==", "AA=="})}}})}};
  ReplacePictures(body);
  EXPECT_EQ(body["messages"][0]["content"], StrCat("What is it?\n", kNote, "\n", kNote));
  EXPECT_FALSE(body["messages"][0].contains("images"));
  body = {{"prompt", "What?"}, {"images", Json::array({"AA=="})}};
  ReplacePictures(body);
  EXPECT_EQ(body, Json({{"prompt", StrCat("What?\n", kNote)}}));
}

TEST(Pictures, OtherRequestsStay) {
  for (const char* text :
       {R"([1])", R"({"messages": 5, "system": {}, "prompt": ["a"], "images": ["A"]})",
        R"({"messages": [null, 1, {"content": [null, {"type": 5}, {"type": "text"}]}]})",
        R"({"messages": [{"role": "user", "content": "image"}]})"}) {
    const Json before = Json::parse(text);
    Json body = before;
    ReplacePictures(body);
    EXPECT_EQ(body, before);
  }
}

TEST_F(ServerTest, APictureIsRefusedWithTheFlagsName) {
  const auto user = [](const Json& content) {
    return Json::array({{{"role", "user"}, {"content", content}}});
  };
  const Json openai = user(Json::array({Part("image_url", "image_url", Json::object())}));
  const Json anthropic = user(Json::array({Part("image", "source", Json::object())}));
  const Json result =
      user(Json::array({{{"type", "tool_result"},
                         {"tool_use_id", "t"},
                         {"content", Json::array({Part("image", "source", {})})}}}));
  Json ollama = user("What?");
  ollama[0]["images"] = Json::array({"AA=="});
  const std::vector<std::pair<const char*, Json>> requests = {
      {"/v1/chat/completions", {{"messages", openai}, {"max_tokens", 2}}},
      {"/v1/responses",
       {{"input", user(Json::array({Part("input_image", "image_url", "x")}))},
        {"max_output_tokens", 2}}},
      {"/v1/messages", {{"messages", anthropic}, {"max_tokens", 2}}},
      {"/v1/messages", {{"messages", result}, {"max_tokens", 2}}},
      {"/v1/messages/count_tokens", {{"messages", anthropic}}},
      {"/api/chat", {{"messages", ollama}, {"stream", false}, {"options", {{"num_predict", 2}}}}},
      {"/api/generate",
       {{"prompt", "What?"},
        {"images", Json::array({"AA=="})},
        {"stream", false},
        {"options", {{"num_predict", 2}}}}},
      {"/apply-template", {{"messages", openai}}},
  };
  for (const auto& [path, body] : requests) {
    const HttpAnswer refused = Post(path, body);
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_NE(refused.body.find("--ignore-images"), std::string::npos) << path << refused.body;
  }
  ServerOptions options;
  options.ignore_images = true;
  Start(options);
  for (const auto& [path, body] : requests) {
    const HttpAnswer taken = Post(path, body);
    EXPECT_EQ(taken.status, 200) << path << taken.body;
  }
  const HttpAnswer prompt = Post("/apply-template", Json{{"messages", openai}});
  EXPECT_NE(prompt.json()["prompt"].get<std::string>().find(kNote), std::string::npos);
}

}  // namespace
}  // namespace kvcache::server::pictures_test
