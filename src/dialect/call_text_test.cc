// What CallText writes is what the dialect's parser reads.
#include "dialect/call_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dialect/answer_parser.h"

namespace kvcache::call_text_test {
namespace {

using Json = nlohmann::ordered_json;

Json Call(const std::string& name, const Json& arguments) {
  return {{"id", "x"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

std::vector<ToolCall> Read(const Dialect& dialect, const std::string& text) {
  AnswerParser parser({.dialect = std::make_shared<const Dialect>(dialect),
                       .calls = true,
                       .tools = {{.name = "get"}, {.name = "put"}}});
  std::vector<ToolCall> calls;
  std::vector<AnswerPart> parts = parser.Push(text);
  for (AnswerPart& part : parser.Flush()) parts.push_back(std::move(part));
  for (AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kCallEnd) calls.push_back(std::move(part.call));
  }
  return calls;
}

TEST(CallText, IsReadBack) {
  const Json arguments = Json::parse(
      R"({"s": "a \"b\" </tool_call> 'c'\n", "n": -1.5, "b": true, "z": null,
          "o": {"k": [1, false, "é"]}, "e": []})");
  int written = 0;
  for (const Dialect& each : Dialects()) {
    // Two calls without a marker are two texts.
    const bool bare = each.calls.bare() && !each.calls.listed;
    Json calls = Json::array({Call("get", arguments)});
    if (!bare) calls.push_back(Call("put", Json::object()));
    const std::string text = CallText(each.calls, calls);
    if (text.empty()) continue;
    const std::vector<ToolCall> read = Read(each, text);
    ASSERT_EQ(read.size(), calls.size()) << each.name << ": " << text;
    EXPECT_EQ(read[0].name, "get") << each.name;
    EXPECT_EQ(read[0].arguments, arguments) << each.name << ": " << text;
    if (!bare) {
      EXPECT_EQ(read[1].arguments, Json::object()) << each.name;
    }
    ++written;
  }
  EXPECT_GT(written, 10);
}

TEST(CallText, IsEmptyForWhatIsNoCall) {
  const CallSyntax& hermes = FindDialect("hermes")->calls;
  EXPECT_EQ(CallText(hermes, Json::array({nullptr, 1})), "");
  EXPECT_EQ(CallText(hermes, Json::array({{{"function", {{"name", 1}}}}})), "");
  EXPECT_EQ(CallText(FindDialect("harmony")->calls, Json::array({Call("get", Json::object())})),
            "");
}

}  // namespace
}  // namespace kvcache::call_text_test
