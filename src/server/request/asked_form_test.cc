// Forms of answers by the names that other servers give them: enforced or refused, never ignored.
#include "server/request/asked_form.h"

#include <string>
#include <utility>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::asked_form_test {
namespace {

using Given = std::vector<std::pair<const char*, Json>>;

class AskedFormTest : public ServerTest {
 protected:
  static const Json& Schema() {
    static const Json schema = {{"type", "object"},
                                {"properties", {{"sure", {{"type", "boolean"}}}}},
                                {"required", Json::array({"sure"})},
                                {"additionalProperties", false}};
    return schema;
  }

  // Returns the text of each route with a field. All have the same form.
  std::vector<std::string> Texts(const char* name, const Json& value, int seed) const {
    Json chat = Chat("Say something", 120);
    chat["temperature"] = 1.5;
    chat["seed"] = seed;
    chat[name] = value;
    Json completion = chat;
    completion.erase("messages");
    completion["prompt"] = "Once";
    Json response = chat;
    response.erase("messages");
    response["input"] = "Say something";
    Json message = chat;
    message["temperature"] = 1;
    Json ollama = chat;
    ollama.update({{"stream", false},
                   {"options", {{"temperature", 1.5}, {"seed", seed}, {"num_predict", 120}}}});
    Json generate = ollama;
    generate["prompt"] = "Once";
    Json raw = generate;
    raw["raw"] = true;
    Json options = ollama;
    options.erase(name);
    options["options"][name] = value;
    const auto text = [&](const char* path, const Json& body, const char* at) {
      const Json answer = Post(path, body).json();
      const Json::json_pointer place(at);
      return answer.contains(place) ? answer[place].get<std::string>() : path + answer.dump();
    };
    return {text("/v1/chat/completions", chat, "/choices/0/message/content"),
            text("/v1/completions", completion, "/choices/0/text"),
            text("/v1/responses", response, "/output/0/content/0/text"),
            text("/v1/messages", message, "/content/0/text"),
            text("/api/chat", ollama, "/message/content"),
            text("/api/chat", options, "/message/content"),
            text("/api/generate", generate, "/response"),
            text("/api/generate", raw, "/response"),
            text("/completion", completion, "/content"),
            text("/completions", completion, "/choices/0/text")};
  }
};

TEST_F(AskedFormTest, SchemasHaveManyNames) {
  const Given given = {
      {"json_schema", Schema()},
      {"json_schema", Schema().dump()},
      {"guided_json", Schema()},
      {"guided_json", Schema().dump()},
      {"format", Schema()},
      {"structured_outputs", {{"json", Schema()}}},
      {"structured_outputs", {{"json", Schema().dump()}, {"disable_fallback", true}}},
      {"structured_outputs", {{"json", Schema()}, {"choice", nullptr}, {"regex", nullptr}}},
      {"output_format", {{"type", "json_schema"}, {"schema", Schema()}}},
      {"output_config", {{"format", {{"type", "json_schema"}, {"schema", Schema()}}}}},
      {"text", {{"format", {{"type", "json_schema"}, {"schema", Schema()}}}}},
      {"response_format",
       {{"type", "json_schema"}, {"json_schema", nullptr}, {"schema", Schema()}}},
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", Schema()}}}}},
      {"response_format", {{"type", "json_object"}, {"schema", Schema()}}}};
  for (const auto& [name, value] : given) {
    for (int seed = 0; seed < 3; ++seed) {
      for (const std::string& text : Texts(name, value, seed)) {
        const Json json = Json::parse(text, nullptr, false);
        EXPECT_TRUE(json.is_object() && json.size() == 1 && json["sure"].is_boolean())
            << name << value << " " << text;
      }
    }
  }
}

TEST_F(AskedFormTest, ChoicesAreTexts) {
  const Json choices = {"positive", "negative", "so \"so\"\n", "\xc3\xa4", "pos"};
  for (const auto& [name, value] :
       Given{{"guided_choice", choices}, {"structured_outputs", {{"choice", choices}}}}) {
    for (int seed = 0; seed < 8; ++seed) {
      for (const std::string& text : Texts(name, value, seed)) {
        EXPECT_NE(std::find(choices.begin(), choices.end(), text), choices.end()) << text;
      }
    }
  }
}

TEST_F(AskedFormTest, JsonObjectsHaveTwoNames) {
  for (const auto& [name, value] :
       Given{{"structured_outputs", {{"json_object", true}}}, {"format", "json"}}) {
    for (const std::string& text : Texts(name, value, 3)) EXPECT_EQ(text[0], '{') << text;
  }
}

TEST_F(AskedFormTest, OtherFormsAreRefused) {
  const Json unknown = {{"not", Json::object()}};
  const Given given = {{"grammar", "root ::= \"a\""},
                       {"grammar", {{"type", "json"}, {"value", Schema()}}},
                       {"grammar_string", "x"},
                       {"guided_grammar", "x"},
                       {"guided_regex", "a+"},
                       {"guided_whitespace_pattern", " "},
                       {"guided_json", unknown},
                       {"guided_json", "{"},
                       {"guided_json", 5},
                       {"json_schema", unknown},
                       {"json_schema", Json::array()},
                       {"guided_choice", Json::array()},
                       {"guided_choice", "yes"},
                       {"guided_choice", Json::array({1})},
                       {"guided_choice", Json::array({""})},
                       {"structured_outputs", {{"regex", "a+"}}},
                       {"structured_outputs", {{"grammar", "x"}}},
                       {"structured_outputs", {{"structural_tag", "x"}}},
                       {"structured_outputs", {{"json", unknown}}},
                       {"structured_outputs", {{"json", Schema()}, {"choice", Json::array({"a"})}}},
                       {"structured_outputs", {{"disable_fallback", true}}},
                       {"structured_outputs", "x"},
                       {"regex", "a+"},
                       {"ebnf", "x"},
                       {"format", "yaml"},
                       {"response_format", {{"type", "regex"}, {"pattern", "a+"}}},
                       {"response_format", {{"type", "grammar"}, {"grammar", "x"}}},
                       {"response_format", {{"type", "structural_tag"}}}};
  for (const auto& [name, value] : given) {
    Json body = Chat("Hi", 4);
    body.update({{"prompt", "Hi"}});
    Json response = {{"input", "Hi"}, {name, value}};
    Json options = body;
    options["options"][name] = value;
    body[name] = value;
    for (const char* const path : {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                   "/v1/messages", "/v1/messages/count_tokens", "/api/chat",
                                   "/api/generate", "/completion", "/completions"}) {
      const bool responds = std::string_view(path) == "/v1/responses";
      const HttpAnswer answer = Post(path, responds ? response : body);
      EXPECT_EQ(answer.status, 400) << path << " " << name << " " << value << answer.body;
      EXPECT_NE(answer.body.find(name), std::string::npos) << path << answer.body;
      if (!std::string_view(path).starts_with("/v1/") || answer.body.starts_with("{\"type\""))
        continue;
      EXPECT_TRUE(answer.json()["error"]["param"].get<std::string>().starts_with(name))
          << answer.body;
    }
    for (const char* const path : {"/api/chat", "/api/generate"}) {
      const HttpAnswer answer = Post(path, options);
      EXPECT_EQ(answer.status, 400) << path << " " << name << " " << value << answer.body;
      EXPECT_NE(answer.body.find(name), std::string::npos) << answer.body;
    }
  }
}

TEST_F(AskedFormTest, OneAnswerHasOneForm) {
  Json body = Chat("Hi", 4);
  body["guided_json"] = Schema();
  body["response_format"] = {{"type", "text"}};
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
  body["response_format"] = {{"type", "json_object"}};
  EXPECT_EQ(Post("/v1/chat/completions", body).json()["error"]["param"], "guided_json");
  const Json response = {{"input", "Hi"},
                         {"guided_json", Schema()},
                         {"text", {{"format", {{"type", "json_object"}}}}}};
  EXPECT_EQ(Post("/v1/responses", response).json()["error"]["param"], "text.format");
  Json ollama = Chat("Hi", 4);
  ollama.update({{"format", "json"}, {"options", {{"guided_json", Schema()}}}});
  const HttpAnswer refused = Post("/api/chat", ollama);
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_NE(refused.body.find("there can be one"), std::string::npos) << refused.body;
  Json anthropic = Chat("Hi", 4);
  anthropic.update(
      {{"guided_json", Schema()}, {"output_config", {{"format", {{"type", "json_object"}}}}}});
  EXPECT_EQ(Post("/v1/messages", anthropic).status, 400);
}

// The reason is the form's size, wherever in a text it shows, and before the answer if it shows at once.
TEST_F(AskedFormTest, AFormThatIsTooLargeIsNamed) {
  const auto many = [](int count) {
    Json schema = {{"anyOf", Json::array()}};
    for (int i = 0; i < count; ++i) {
      const Json flag = {{"type", "boolean"}};
      schema["anyOf"].push_back({{"type", "object"},
                                 {"properties", {{StrCat("p", i), flag}, {StrCat("q", i), flag}}},
                                 {"additionalProperties", false}});
    }
    return schema;
  };
  for (const int count : {1500, 2100}) {
    for (const bool stream : {false, true}) {
      Json body = Chat("Hi", 40);
      body.update({{"stream", stream}, {"guided_json", many(count)}});
      const HttpAnswer answer = Post("/v1/chat/completions", body);
      EXPECT_EQ(answer.status, 400) << count << answer.body;
      EXPECT_NE(answer.body.find("is too large"), std::string::npos) << answer.body;
      body["guided_json"] = {{"type", "object"},
                             {"properties", {{"a", many(count)}}},
                             {"required", Json::array({"a"})},
                             {"additionalProperties", false}};
      const HttpAnswer inside = Post("/v1/chat/completions", body);
      EXPECT_NE(inside.body.find("is too large"), std::string::npos) << inside.body;
    }
  }
}

// A message that is continued may have thoughts before the text of the form.
TEST_F(AskedFormTest, ThoughtsOfTheLastMessageAreNoPartOfTheForm) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"type", "boolean"}}}}},
                       {"required", Json::array({"a"})},
                       {"additionalProperties", false}};
  for (const char* const thoughts : {"", "<think>x</think>", "\n<think>\nx\n</think>\n\n"}) {
    Json body = Chat("Is it?", 60);
    body["messages"].push_back({{"role", "assistant"}, {"content", StrCat(thoughts, "{\"a\":")}});
    body["guided_json"] = schema;
    const std::string rest = ChatText(body);
    EXPECT_TRUE(Json::parse("{\"a\":" + rest, nullptr, false)["a"].is_boolean()) << rest;
    body["messages"].back()["content"] = StrCat(thoughts, "{\"b\":");
    EXPECT_EQ(Post("/v1/chat/completions", body).status, 400) << thoughts;
  }
}

// Nothing is asked for by empty fields and by those that say how a form is enforced.
TEST_F(AskedFormTest, EmptyFieldsAskForNothing) {
  const std::string expected = ChatText(Chat("Tell me of a cat.", 12));
  for (const auto& [name, value] : Given{{"grammar", ""},
                                         {"guided_regex", nullptr},
                                         {"structured_outputs", Json::object()},
                                         {"structured_outputs", true},
                                         {"structured_outputs", {{"json", nullptr}}},
                                         {"structured_outputs",
                                          {{"json", nullptr},
                                           {"regex", nullptr},
                                           {"choice", nullptr},
                                           {"grammar", nullptr},
                                           {"json_object", nullptr},
                                           {"disable_fallback", false},
                                           {"whitespace_pattern", nullptr}}},
                                         {"structured_outputs", {{"json_object", false}}},
                                         {"output_config", {{"effort", "low"}}},
                                         {"text", "of another kind"},
                                         {"guided_decoding_backend", "xgrammar"},
                                         {"format", ""}}) {
    Json body = Chat("Tell me of a cat.", 12);
    body[name] = value;
    EXPECT_EQ(ChatText(body), expected) << name;
  }
}

}  // namespace
}  // namespace kvcache::server::asked_form_test
