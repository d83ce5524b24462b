#include "engine/chat/conversation_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "kvcache_engine/conversation.h"

namespace kvcache::conversation_test {
namespace {

using ::testing::HasSubstr;

std::string Nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

TEST(Conversation, IsReadBackAsItWasWritten) {
  ChatInput input;
  input.messages = {{{"role", "system"}, {"content", "Be brief."}},
                    {{"role", "user"}, {"content", nlohmann::ordered_json::array({"a\n", 1})}},
                    {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {{{"id", "x"}}}}}};
  input.tools = nlohmann::ordered_json::array({{{"type", "function"}}});
  input.variables = {{"enable_thinking", false}};
  const std::string text = ConversationText(input);
  ChatInput again;
  ASSERT_TRUE(ReadConversation(text, again).ok());
  EXPECT_EQ(again.messages, input.messages);
  EXPECT_EQ(again.tools, input.tools);
  EXPECT_EQ(again.variables, input.variables);
  EXPECT_EQ(ConversationText(again), text);
}

TEST(Conversation, KeepsToolsAndVariablesThatTheTextDoesNotHave) {
  ChatInput input;
  input.tools = nlohmann::ordered_json::array({{{"type", "function"}}});
  input.variables = {{"x", 1}};
  ASSERT_TRUE(ReadConversation(R"([{"role": "user", "content": "hi"}])", input).ok());
  EXPECT_EQ(input.messages.size(), 1u);
  EXPECT_EQ(input.tools.size(), 1u);
  EXPECT_EQ(input.variables.size(), 1u);
  ASSERT_TRUE(ReadConversation(R"({"messages": [], "tools": null})", input).ok());
  EXPECT_TRUE(input.tools.is_null());
}

TEST(Conversation, ErrorsSayWhatIsWrongAndChangeNothing) {
  constexpr const char* kCases[][2] = {
      {"5", "expected an object with \"messages\""},
      {"{}", "expected an object with \"messages\""},
      {R"({"messages": {}})", "\"messages\" is not an array but object"},
      {R"({"messages": [], "version": 2})", "\"version\" is 2; this program reads 1"},
      {R"({"messages": [], "version": "1"})", "\"version\" is \"1\""},
      {"[5]", "message 1 is not an object but number"},
      {R"([{"role": "user"}, {"content": "x"}])", "message 2 has no \"role\""},
      {R"([{"role": null}])", "message 1 has no \"role\" that is a string"},
      {R"([{"role": "user", "content": {}}])", "the \"content\" of message 1 is object"},
      {R"({"messages": [], "tools": {}})", "tools are an array of objects, not object"},
      {R"({"messages": [], "tools": [null]})", "tool 1 is not an object"},
      {R"({"messages": [], "variables": 1})", "\"variables\" is not an object but number"}};
  for (const auto& [text, words] : kCases) {
    ChatInput input;
    input.messages = {{{"role", "user"}, {"content", "before"}}};
    const Status status = ReadConversation(text, input);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(words)) << text;
    EXPECT_EQ(input.messages.size(), 1u);
  }
}

TEST(Conversation, IsChangedByMessages) {
  Conversation conversation;
  conversation.Add("user", "one");
  conversation.SetSystem("Be brief.");
  conversation.SetSystem("Be kind.");
  conversation.Add("assistant", "two");
  EXPECT_EQ(conversation.size(), 3u);
  EXPECT_TRUE(conversation.HasSystem());
  EXPECT_EQ(conversation.ContentText(0), "Be kind.");
  conversation.Remove(1, 3);
  EXPECT_EQ(conversation.size(), 1u);
  EXPECT_FALSE(conversation.HasTools());
  EXPECT_TRUE(conversation.SetTools(R"({"type": "function"})").ok());
  EXPECT_TRUE(conversation.HasTools());
  EXPECT_TRUE(conversation.SetVariable("json", "[1]").ok());
  EXPECT_TRUE(conversation.SetVariable("text", "[1").ok());
  EXPECT_EQ(conversation.SetVariable("deep", Nested(200)).code(), StatusCode::kUnsupported);
  EXPECT_EQ(conversation.variables(), (std::vector<std::string>{"json", "text"}));
  EXPECT_EQ(conversation.ToJson(),
            "{\"version\": 1,\n \"messages\": [\n"
            "  {\"role\":\"system\",\"content\":\"Be kind.\"}],\n"
            " \"tools\": [{\"type\":\"function\"}],\n"
            " \"variables\": {\"json\":[1],\"text\":\"[1\"}}\n");
  Conversation again;
  ASSERT_TRUE(again.ReadJson(conversation.ToJson()).ok());
  EXPECT_EQ(again.ToJson(), conversation.ToJson());
}

TEST(Conversation, ACutTailCanBeAppendedAgain) {
  Conversation conversation;
  conversation.Add("user", "a");
  conversation.Add("assistant", "b");
  conversation.Add("assistant", "c");
  const std::string before = conversation.ToJson();
  Conversation tail = conversation.CutTail(1);
  EXPECT_EQ(conversation.size(), 1U);
  EXPECT_EQ(tail.size(), 2U);
  EXPECT_EQ(tail.ContentText(0), "b");
  EXPECT_TRUE(conversation.CutTail(1).empty());
  conversation.Append(std::move(tail));
  EXPECT_EQ(conversation.ToJson(), before);
}

TEST(Conversation, ReadsTools) {
  EXPECT_EQ(ReadTools(R"([{"type": "function"}])")->size(), 1u);
  EXPECT_EQ(ReadTools(R"({"type": "function"})")->size(), 1u) << "one stands for a list of one";
  EXPECT_FALSE(ReadTools("null").ok());
  EXPECT_FALSE(ReadTools("[[]]").ok());
  EXPECT_FALSE(ReadTools("\"x\"").ok());
}

}  // namespace
}  // namespace kvcache::conversation_test
