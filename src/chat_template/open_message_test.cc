#include "chat_template/open_message.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace kvcache::open_message_test {
namespace {

using Json = nlohmann::ordered_json;

ChatInput Conversation(const Json& last, GenerationPrompt end = GenerationPrompt::kByLastMessage) {
  ChatInput input;
  input.generation_prompt = end;
  input.messages.push_back({{"role", "user"}, {"content", "Q"}});
  input.messages.push_back(last);
  return input;
}

Json Answer(const std::string& text) {
  return {{"role", "assistant"}, {"content", text}};
}

Json Thoughts(const std::string& text) {
  return {{"role", "assistant"}, {"content", ""}, {"reasoning_content", text}};
}

// Returns the prompt, or "error: …".
std::string Written(const std::string& source, ChatInput input,
                    const ThoughtSyntax& thoughts = {"<think>", "</think>"}) {
  const auto parsed = ChatTemplate::Parse(source);
  EXPECT_TRUE(parsed.ok()) << source;
  const auto part = PrepareLastMessage(input, thoughts);
  if (!part.ok()) return "error: " + part.status().message();
  const auto text = RenderOpen(*parsed, std::move(input), *part, thoughts);
  if (!text.ok()) return "error: " + text.status().message();
  std::size_t end = 0;
  for (const TextRange& range : text->foreign) {
    EXPECT_TRUE(range.begin >= end && range.begin < range.end) << text->text;
    end = range.end;
  }
  EXPECT_LE(end, text->text.size());
  return text->text;
}

constexpr const char* kTurns =
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kThinking =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>\n"
    "{{ (m.reasoning_content or '').strip('\n') }}\n</think>\n\n{{ m.content.lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kOpensThoughts =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}";

TEST(OpenMessage, ALastTextOfTheAssistantIsContinued) {
  const std::pair<Json, const char*> cases[] = {
      {Answer("Roses are"), "<user>Q</><assistant>Roses are"},
      {Answer("Roses are "), "<user>Q</><assistant>Roses are "},
      {Answer("a\n\n"), "<user>Q</><assistant>a\n\n"},
      {Answer(""), "<user>Q</><assistant>"},
      {Answer("zqopenzq zqopenzq"), "<user>Q</><assistant>zqopenzq zqopenzq"},
      {{{"role", "user"}, {"content", "R"}}, "<user>Q</><user>R</><assistant>"},
      {{{"role", "tool"}, {"content", "R"}}, "<user>Q</><tool>R</><assistant>"},
  };
  for (const auto& [last, expected] : cases)
    EXPECT_EQ(Written(kTurns, Conversation(last)), expected);
}

TEST(OpenMessage, CallsOfToolsAreNoText) {
  Json last = Answer("Let me look.");
  last["tool_calls"] = Json::array({{{"function", {{"name", "f"}}}}});
  EXPECT_EQ(Written(kTurns, Conversation(last)), "<user>Q</><assistant>Let me look.</><assistant>");
  const std::string refused = Written(kTurns, Conversation(last, GenerationPrompt::kContinue));
  EXPECT_TRUE(refused.starts_with("error: ")) << refused;
  last["tool_calls"] = Json::array();
  EXPECT_EQ(Written(kTurns, Conversation(last)), "<user>Q</><assistant>Let me look.");
}

TEST(OpenMessage, TheRequestDecides) {
  const auto written = [](GenerationPrompt end, const Json& last) {
    return Written(kTurns, Conversation(last, end));
  };
  const Json user = {{"role", "user"}, {"content", "R"}};
  EXPECT_EQ(written(GenerationPrompt::kAdd, Answer("A")), "<user>Q</><assistant>A</><assistant>");
  EXPECT_EQ(written(GenerationPrompt::kOmit, Answer("A")), "<user>Q</><assistant>A</>");
  EXPECT_EQ(written(GenerationPrompt::kContinue, Answer("A")), "<user>Q</><assistant>A");
  EXPECT_EQ(written(GenerationPrompt::kContinue, user), "<user>Q</><user>R");
  Json empty = user;
  empty["content"] = "";
  EXPECT_TRUE(written(GenerationPrompt::kContinue, empty).starts_with("error: "));
}

TEST(OpenMessage, ThoughtsWithoutATextAreContinued) {
  EXPECT_EQ(Written(kThinking, Conversation(Thoughts("I see "))),
            "<user>Q</><assistant><think>\nI see ");
  EXPECT_EQ(Written(kThinking, Conversation(Answer("<think>\nI see"))),
            "<user>Q</><assistant><think>\nI see");
  EXPECT_EQ(Written(kThinking, Conversation(Answer("A"))),
            "<user>Q</><assistant><think>\n\n</think>\n\nA");
  Json both = Thoughts("I see");
  both["content"] = "A";
  EXPECT_EQ(Written(kThinking, Conversation(both)),
            "<user>Q</><assistant><think>\nI see\n</think>\n\nA");
  // A template that only begins thoughts.
  EXPECT_EQ(Written(kOpensThoughts, Conversation(Thoughts("I see"))),
            "<user>Q</><assistant><think>\nI see");
  EXPECT_TRUE(Written(kTurns, Conversation(Thoughts("I see"))).starts_with("error: "));
  // The tag is text to a template without thoughts.
  EXPECT_EQ(Written(kTurns, Conversation(Answer("<think>\nI see"))),
            "<user>Q</><assistant><think>\nI see");
}

TEST(OpenMessage, MarksOfThoughtsAreThoseOfTheFamily) {
  const ThoughtSyntax marks{"[THINK]", "[/THINK]"};
  constexpr const char* kOwn =
      "{% for m in messages %}<{{ m.role }}>{% if m.thinking %}[THINK]{{ m.thinking }}[/THINK]{% "
      "endif %}"
      "{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(Written(kOwn, Conversation(Answer("[THINK]I see")), marks),
            "<user>Q</><assistant>[THINK]I see");
  EXPECT_EQ(Written(kOwn, Conversation(Answer("[THINK]I see[/THINK]A")), marks),
            "<user>Q</><assistant>[THINK]I see[/THINK]A");
  EXPECT_EQ(Written(kOwn, Conversation(Thoughts("I see")), marks),
            "<user>Q</><assistant>[THINK]I see");
  // The template's own key, as a history has it.
  Json own = Answer("");
  own["thinking"] = "I see";
  EXPECT_EQ(Written(kOwn, Conversation(own), marks), "<user>Q</><assistant>[THINK]I see");
  // Marks of another family are text.
  EXPECT_EQ(Written(kOwn, Conversation(Answer("<think>I see")), marks),
            "<user>Q</><assistant><think>I see");
  constexpr const char* kOpens =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><seed:think>{% endif %}";
  EXPECT_EQ(Written(kOpens, Conversation(Thoughts("I see")), {"<seed:think>", "</seed:think>"}),
            "<user>Q</><assistant><seed:think>I see");
}

TEST(OpenMessage, ATemplateThatCannotIsAnError) {
  for (const char* source :
       {"{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
        "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}",
        "{{ messages[-1].content[:2] }}"}) {
    const std::string written = Written(source, Conversation(Answer("Roses are")));
    EXPECT_TRUE(written.starts_with("error: ")) << written;
  }
}

}  // namespace
}  // namespace kvcache::open_message_test
