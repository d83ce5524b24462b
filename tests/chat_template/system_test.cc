// Checks system messages in all places of a conversation, with templates as models have them: none is lost,
// none is an error, and a conversation that grows keeps its prompt's beginning.
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "template_files.h"

namespace kvcache::system_test {
namespace {

using Json = nlohmann::ordered_json;

Json User(const std::string& text) {
  return {{"role", "user"}, {"content", text}};
}
Json System(const std::string& text) {
  return {{"role", "system"}, {"content", text}};
}
Json Answer(const std::string& text) {
  return {{"role", "assistant"}, {"content", text}};
}
Json Call() {
  return {
      {"role", "assistant"},
      {"content", ""},
      {"tool_calls", Json::array({{{"id", "call00001"},
                                   {"type", "function"},
                                   {"function", {{"name", "look"}, {"arguments", {{"a", 1}}}}}}})}};
}
Json ToolResult(const std::string& text) {
  return {{"role", "tool"}, {"tool_call_id", "call00001"}, {"content", text}};
}

std::string PromptOf(const ChatFormat& format, const Json& messages) {
  ChatInput input;
  input.now = std::tm{};
  input.messages = messages;
  const auto prompt = format.Write(input);
  EXPECT_TRUE(prompt.ok()) << prompt.status().message() << "\n" << messages.dump();
  return prompt.ok() ? prompt->text : "";
}

using Requests = std::vector<std::vector<Json>>;

// Conversations; each is the messages that a client adds in one request after another.
std::vector<Requests> Conversations() {
  std::vector<Requests> list(4);
  list[0].push_back({System("the opening"), User("question one")});
  list[0].push_back({Answer("answer one"), System("note two"), User("question two")});
  list[0].push_back({Answer("answer two"), User("question three"), System("note three")});
  list[0].push_back({Answer("answer three"), User("question four")});
  list[1].push_back({User("question one"), System("note one")});
  list[1].push_back(
      {Answer("answer one"), User("question two"), System("note two"), System("note three")});
  list[1].push_back({Answer("answer two"), System("note four")});
  list[1].push_back({Answer("answer three"), User("question three")});
  list[2].push_back({System("the opening"), System("the next opening"), User("question one")});
  list[2].push_back({Answer("answer one"), User("question two")});
  list[3].push_back({User("question one"), System("note one"), User("question two")});
  list[3].push_back({Answer("answer one"), User("question three")});
  return list;
}

TEST(SystemAnywhere, NoneIsLostAndPromptsKeepTheirBeginnings) {
  const auto tokenizer = ByteTokenizer();
  for (const TemplateFile& file : TemplateFiles()) {
    SCOPED_TRACE(file.name);
    const auto format = ChatFormat::FromSource(file.source, file.name, *tokenizer);
    ASSERT_TRUE(format.ok()) << format.status().message();
    // The template that Mistral's models have puts the opening into the last question, if there is one.
    const bool moves_opening = file.name == "mistral_tools.jinja";
    for (const Requests& requests : Conversations()) {
      Json messages = Json::array();
      std::string before;
      for (const std::vector<Json>& request : requests) {
        for (const Json& message : request) messages.push_back(message);
        const std::string prompt = PromptOf(*format, messages);
        std::size_t at = 0;
        for (const Json& message : messages) {
          const std::string text = message["content"].get<std::string>();
          const bool is_opening = text.find("opening") != text.npos;
          const std::size_t found = prompt.find(text, is_opening && moves_opening ? 0 : at);
          ASSERT_NE(found, prompt.npos) << text << " in:\n" << prompt << "\n" << messages.dump();
          if (!is_opening || !moves_opening) at = found + text.size();
        }
        // Up to the last answer nothing changes, except what templates do without system messages, too.
        const std::size_t end = before.rfind("question");
        const bool moved = moves_opening && messages[0]["role"] == "system";
        if (end != before.npos && !moved) {
          EXPECT_EQ(prompt.substr(0, end), before.substr(0, end)) << messages.dump();
        }
        before = prompt;
      }
    }
  }
}

TEST(SystemAnywhere, TheyStandBehindResultsOfTools) {
  const auto tokenizer = ByteTokenizer();
  for (const TemplateFile& file : TemplateFiles()) {
    if (file.source.find("tool_calls") == std::string::npos) continue;
    SCOPED_TRACE(file.name);
    const auto format = ChatFormat::FromSource(file.source, file.name, *tokenizer);
    ASSERT_TRUE(format.ok());
    const Json first = Json::array({User("question one"), Call(), ToolResult("result one")});
    for (const bool between : {false, true}) {
      Json messages = first;
      messages.insert(messages.end() - (between ? 1 : 0), System("note one"));
      const std::string prompt = PromptOf(*format, messages);
      const std::size_t note = prompt.find("note one");
      ASSERT_NE(note, prompt.npos) << prompt;
      EXPECT_EQ(prompt.find("result one") > note, between) << prompt;
      // What was written before the note is the same without it.
      const std::string shorter = PromptOf(*format, first);
      const std::size_t result = shorter.find("result one");
      EXPECT_EQ(prompt.substr(0, result),
                between ? prompt.substr(0, result) : shorter.substr(0, result));
      messages.push_back(Answer("answer one"));
      messages.push_back(User("question two"));
      const std::string longer = PromptOf(*format, messages);
      EXPECT_EQ(longer.substr(0, note + 8), prompt.substr(0, note + 8));
    }
  }
}

}  // namespace
}  // namespace kvcache::system_test
