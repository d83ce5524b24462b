// What requests say to the model's template, through sockets: how the prompt ends, variables, and tools.
#include <string>
#include <utility>
#include <vector>

#include "server/server_testing.h"

namespace kvcache::server::template_fields_test {
namespace {

Json Turns(const std::string& answer) {
  return Json::array({{{"role", "user"}, {"content", "Tell me a story. "}},
                      {{"role", "assistant"}, {"content", answer}}});
}

TEST_F(ServerTest, EachChatRouteContinuesTheAssistantsText) {
  const std::string begun = "Once upon a time";
  const std::string text =
      ChatText({{"messages", Turns(begun)}, {"max_tokens", 12}, {"temperature", 0}});
  EXPECT_FALSE(text.empty());
  // The answer is what the whole prompt is continued with.
  const Json raw =
      Post("/v1/completions",
           Json{{"prompt", "Tell me a story. " + begun}, {"max_tokens", 12}, {"temperature", 0}})
          .json();
  EXPECT_EQ(text, raw["choices"][0]["text"]);
  EXPECT_EQ(
      ChatText(
          {{"messages", Turns(begun)}, {"max_tokens", 12}, {"temperature", 0}, {"stream", true}}),
      text);
  const Json anthropic =
      Post("/v1/messages", Json{{"messages", Turns(begun)}, {"max_tokens", 12}, {"temperature", 0}})
          .json();
  EXPECT_EQ(anthropic["content"][0]["text"], text) << anthropic;
  const Json ollama =
      Post("/api/chat", Json{{"messages", Turns(begun)},
                             {"stream", false},
                             {"options", {{"num_predict", 12}, {"temperature", 0}}}})
          .json();
  EXPECT_EQ(ollama["message"]["content"], text) << ollama;
  const Json responses =
      Post("/v1/responses",
           Json{{"input", Turns(begun)}, {"max_output_tokens", 12}, {"temperature", 0}})
          .json();
  EXPECT_EQ(responses["output"][0]["content"][0]["text"], text) << responses;
  // An empty one is as if it were not there.
  Json question = Turns("");
  question.erase(1);
  EXPECT_EQ(ChatText({{"messages", Turns("")}, {"max_tokens", 12}, {"temperature", 0}}),
            ChatText({{"messages", question}, {"max_tokens", 12}, {"temperature", 0}}));
}

// The story model with another template.
class TemplateTest : public ServerTest {
 protected:
  void Serve(const std::string& chat_template) {
    server_.reset();
    auto server = Server::Start(*engine_, {.name = "story", .chat_template = chat_template}, {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  std::string PromptOf(Json messages, const Json& more = Json::object()) const {
    Json body = {{"messages", std::move(messages)}};
    body.update(more);
    const HttpAnswer answer = Post("/apply-template", body);
    return answer.status == 200 ? answer.json()["prompt"].get<std::string>() : answer.body;
  }
};

constexpr const char* kTurns =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kThinking =
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ "
    "m.reasoning_content }}</think>{% endif %}{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not "
    "enable_thinking %}<think></think>{% endif %}{% endif %}{{ effort or '' }}";

TEST_F(TemplateTest, ThePromptEndsAsVllmDocumentsIt) {
  Serve(kTurns);
  const std::string closed = "<user>Tell me a story. </><assistant>Once</>";
  const std::string open = "<user>Tell me a story. </><assistant>Once";
  const std::pair<Json, std::string> cases[] = {
      {Json::object(), open},
      {{{"add_generation_prompt", nullptr}}, open},
      {{{"add_generation_prompt", true}}, closed + "<assistant>"},
      {{{"add_generation_prompt", false}}, closed},
      {{{"continue_final_message", true}}, open},
      {{{"continue_final_message", true}, {"add_generation_prompt", false}}, open},
      {{{"continue_final_message", false}}, closed + "<assistant>"},
      {{{"continue_final_message", false}, {"add_generation_prompt", false}}, closed},
  };
  for (const auto& [fields, expected] : cases) {
    EXPECT_EQ(PromptOf(Turns("Once"), fields), expected) << fields;
    // The other routes have the same prompt.
    Json body = {{"messages", Turns("Once")}, {"max_tokens", 1}};
    body.update(fields);
    const Json probe = Post("/probe", body).json();
    const Json chat = Post("/v1/chat/completions", body).json();
    EXPECT_EQ(chat["usage"]["prompt_tokens"], probe["prompt_tokens"]) << fields << chat;
  }
  Json question = Turns("");
  question.erase(1);
  EXPECT_EQ(PromptOf(question, {{"continue_final_message", true}}), "<user>Tell me a story. ");
  for (const Json& wrong :
       {Json{{"continue_final_message", true}, {"add_generation_prompt", true}},
        Json{{"continue_final_message", 1}}, Json{{"add_generation_prompt", "yes"}}}) {
    Json body = {{"messages", Turns("Once")}, {"max_tokens", 1}};
    body.update(wrong);
    for (const char* path : {"/v1/chat/completions", "/apply-template", "/probe"}) {
      const HttpAnswer refused = Post(path, body);
      EXPECT_EQ(refused.status, 400) << path << wrong;
      EXPECT_NE(refused.body.find(wrong.begin().key()), std::string::npos) << refused.body;
    }
  }
}

TEST_F(TemplateTest, ATemplateThatCannotContinueIsAnError) {
  Serve("{% for m in messages %}{{ m.content[:2] }}{% endfor %}");
  Json body = {{"messages", Turns("Once")}, {"max_tokens", 2}, {"stream", false}};
  for (const char* path : {"/v1/chat/completions", "/v1/messages", "/api/chat"}) {
    const HttpAnswer refused = Post(path, body);
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_NE(refused.body.find("last message"), std::string::npos) << refused.body;
  }
}

TEST_F(TemplateTest, ThoughtsAreContinuedOnEachApi) {
  Serve(kThinking);
  const std::string open = "<user>Tell me a story. </><assistant><think>I should";
  Json turns = Turns("");
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    turns[1] = {{"role", "assistant"}, {"content", ""}, {name, "I should"}};
    EXPECT_EQ(PromptOf(turns), open) << name;
  }
  EXPECT_EQ(PromptOf(Turns("<think>I should")), open);
  const Json chat =
      Post("/v1/chat/completions", Json{{"messages", turns}, {"max_tokens", 8}, {"temperature", 0}})
          .json();
  const Json message = chat["choices"][0]["message"];
  EXPECT_FALSE(message.value("reasoning_content", "").empty()) << chat;
  const Json block = {{"type", "thinking"}, {"thinking", "I should"}, {"signature", "s"}};
  turns[1] = {{"role", "assistant"}, {"content", Json::array({block})}};
  const Json anthropic =
      Post("/v1/messages", Json{{"messages", turns}, {"max_tokens", 8}, {"temperature", 0}}).json();
  EXPECT_EQ(anthropic["content"][0]["thinking"], message["reasoning_content"]) << anthropic;
}

TEST_F(TemplateTest, PromptsAreShownWithTheVariablesOfTheirRequests) {
  Serve(kThinking);
  Json question = Turns("");
  question.erase(1);
  const std::string plain = PromptOf(question);
  EXPECT_EQ(plain, "<user>Tell me a story. </><assistant>");
  for (const Json& fields : {Json{{"chat_template_kwargs", {{"enable_thinking", false}}}},
                             Json{{"think", false}}, Json{{"reasoning_effort", "none"}}}) {
    EXPECT_EQ(PromptOf(question, fields), plain + "<think></think>") << fields;
    Json body = {{"messages", question}};
    body.update(fields);
    EXPECT_GT(Post("/probe", body).json()["prompt_tokens"],
              Post("/probe", Json{{"messages", question}}).json()["prompt_tokens"]);
  }
  EXPECT_EQ(PromptOf(question, {{"chat_template_kwargs", {{"effort", "!"}}}}), plain + "!");
  EXPECT_EQ(
      Post("/apply-template", Json{{"messages", question}, {"chat_template_kwargs", 5}}).status,
      400);
}

TEST_F(ServerTest, AFormHoldsForTheWholeAnswer) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"name", {{"type", "string"}, {"maxLength", 5}}}}},
                       {"required", {"name"}},
                       {"additionalProperties", false}};
  Json body = {{"messages", Turns(R"({"name": "M)")},
               {"max_tokens", 40},
               {"temperature", 0},
               {"response_format",
                {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}};
  const std::string rest = ChatText(body);
  const Json whole = Json::parse(R"({"name": "M)" + rest, nullptr, false);
  ASSERT_TRUE(whole.is_object()) << rest;
  EXPECT_LE(whole["name"].get<std::string>().size(), 5);
  body["messages"] = Turns("Of course:");
  const HttpAnswer refused = Post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("Of course:"), std::string::npos) << refused.body;
}

}  // namespace
}  // namespace kvcache::server::template_fields_test
