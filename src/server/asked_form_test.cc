// Forms of answers by the names that other servers give them: enforced or refused, never ignored.
#include "server/asked_form.h"

#include <string>
#include <utility>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server {
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

  // Returns the text of a chat and of a completion with a field. Both have the same form.
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
    return {ChatText(chat),
            Post("/v1/completions", completion).json()["choices"][0]["text"].get<std::string>(),
            Post("/v1/responses", response)
                .json()["output"][0]["content"][0]["text"]
                .get<std::string>()};
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
    for (Json body : {Chat("Hi", 4), Json{{"prompt", "Hi"}}, Json{{"input", "Hi"}}}) {
      const char* const path = body.contains("messages") ? "/v1/chat/completions"
                               : body.contains("prompt") ? "/v1/completions"
                                                         : "/v1/responses";
      body[name] = value;
      const HttpAnswer answer = Post(path, body);
      EXPECT_EQ(answer.status, 400) << path << " " << name << " " << value << answer.body;
      EXPECT_TRUE(answer.json()["error"]["param"].get<std::string>().starts_with(name))
          << answer.body;
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
}

// Nothing is asked for by empty fields and by those that say how a form is enforced.
TEST_F(AskedFormTest, EmptyFieldsAskForNothing) {
  const std::string expected = ChatText(Chat("Tell me of a cat.", 12));
  for (const auto& [name, value] : Given{{"grammar", ""},
                                         {"guided_regex", nullptr},
                                         {"structured_outputs", Json::object()},
                                         {"structured_outputs", true},
                                         {"guided_decoding_backend", "xgrammar"},
                                         {"format", ""}}) {
    Json body = Chat("Tell me of a cat.", 12);
    body[name] = value;
    EXPECT_EQ(ChatText(body), expected) << name;
  }
}

}  // namespace
}  // namespace kvcache::server
