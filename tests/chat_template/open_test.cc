// Checks that answers continue a last message of the assistant, with templates as models have them.
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "chat_template/chat_format.h"
#include "template_files.h"

namespace kvcache::open_test {
namespace {

using Json = nlohmann::ordered_json;

Result<ChatPrompt> Write(const ChatFormat& format, const Json& last) {
  ChatInput input;
  input.now = std::tm{};
  input.messages = Json::array({{{"role", "system"}, {"content", "the opening"}},
                                {{"role", "user"}, {"content", "question one"}},
                                {{"role", "assistant"}, {"content", "answer one"}},
                                {{"role", "user"}, {"content", "question two"}}});
  input.messages.push_back(last);
  return format.Write(input);
}

TEST(OpenMessage, EveryTemplateLeavesItsTextOpen) {
  const auto tokenizer = ByteTokenizer();
  for (const TemplateFile& file : TemplateFiles()) {
    SCOPED_TRACE(file.name);
    const auto format = ChatFormat::FromSource(file.source, file.name, *tokenizer);
    ASSERT_TRUE(format.ok());
    std::string before;
    for (const char* text : {"Roses are", "Roses are ", "Roses are\n\n", "Roses are <|im_end|> "}) {
      const auto prompt = Write(*format, {{"role", "assistant"}, {"content", text}});
      ASSERT_TRUE(prompt.ok()) << prompt.status().message();
      ASSERT_TRUE(prompt->text.ends_with(text)) << prompt->text;
      EXPECT_EQ(prompt->open, OpenPart::kText);
      EXPECT_EQ(prompt->open_text, text);
      // What stands before the text does not depend on it.
      const std::string head =
          prompt->text.substr(0, prompt->text.size() - std::string(text).size());
      EXPECT_EQ(head, before.empty() ? head : before);
      EXPECT_NE(head.find("question two"), head.npos);
      before = head;
    }
    const auto empty = Write(*format, {{"role", "assistant"}, {"content", ""}});
    ASSERT_TRUE(empty.ok());
    EXPECT_EQ(empty->open, OpenPart::kNone);
    EXPECT_NE(empty->text.find("question two"), std::string::npos);
  }
}

TEST(OpenMessage, TemplatesWithThoughtsLeaveThemOpen) {
  const auto tokenizer = ByteTokenizer();
  const Json thoughts = {{"role", "assistant"}, {"content", ""}, {"reasoning_content", "I should"}};
  const Json tagged = {{"role", "assistant"}, {"content", "<think>\nI should"}};
  for (const TemplateFile& file : TemplateFiles()) {
    SCOPED_TRACE(file.name);
    const auto format = ChatFormat::FromSource(file.source, file.name, *tokenizer);
    ASSERT_TRUE(format.ok());
    std::string end;
    if (file.name == "qwen3_reasoning.jinja") end = "<|im_start|>assistant\n<think>\nI should";
    if (file.name == "channels_macros.jinja") {
      end = "<|start|>assistant<|channel|>analysis<|message|>I should";
    }
    for (const Json& last : {thoughts, tagged}) {
      const auto prompt = Write(*format, last);
      // Without thoughts the tag is text, and other thoughts have no place.
      EXPECT_EQ(prompt.ok(), !end.empty() || last == tagged);
      if (!prompt.ok()) continue;
      const std::string expected = end.empty() ? "<think>\nI should" : end;
      EXPECT_TRUE(prompt->text.ends_with(expected)) << prompt->text;
      EXPECT_EQ(prompt->open, OpenPart::kThoughts);
    }
  }
}

}  // namespace
}  // namespace kvcache::open_test
