#include "dialect/answer_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace kvcache::answer_parser_test {
namespace {

using Kind = AnswerPart::Kind;

// Writes the parts as one text: r(…) reasoning, c(name arguments), and text as it is.
std::string Written(const std::vector<AnswerPart>& parts) {
  std::string out;
  std::string arguments;
  bool thinks = false;
  for (const AnswerPart& part : parts) {
    if (thinks != (part.kind == Kind::kReasoning)) out += thinks ? ")" : "r(";
    thinks = part.kind == Kind::kReasoning;
    if (part.kind == Kind::kCallBegin) {
      arguments.clear();
      EXPECT_FALSE(part.call.name.empty());
    } else if (part.kind == Kind::kCallArguments) {
      arguments += part.text;
    } else if (part.kind == Kind::kCallEnd) {
      EXPECT_EQ(nlohmann::ordered_json::parse(arguments), part.call.arguments);
      out += StrCat("c(", part.call.name, " ", part.call.arguments.dump(), ")");
    } else {
      EXPECT_FALSE(part.text.empty());
      out += part.text;
    }
  }
  return out + (thinks ? ")" : "");
}

std::string Parse(const AnswerSyntax& syntax, const std::vector<std::string>& pieces) {
  AnswerParser parser(syntax);
  std::vector<AnswerPart> all;
  for (const std::string& piece : pieces) {
    for (AnswerPart& part : parser.Push(piece)) all.push_back(std::move(part));
    if (parser.done()) return Written(all);
  }
  for (AnswerPart& part : parser.Flush()) all.push_back(std::move(part));
  return Written(all);
}

// Parses the text whole and in pieces, which must be the same.
std::string ParseAll(const AnswerSyntax& syntax, const std::string& text) {
  std::string whole = Parse(syntax, {text});
  std::mt19937 random(7);
  for (std::size_t max : {1U, 2U, 5U, 11U}) {
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % max;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(Parse(syntax, pieces), whole) << text;
  }
  return whole;
}

AnswerSyntax SyntaxOf(const char* dialect) {
  return {.dialect = std::make_shared<const Dialect>(*FindDialect(dialect)),
          .calls = true,
          .tools = {{.name = "f"}, {.name = "g"}}};
}

const AnswerSyntax kTags = SyntaxOf("hermes");
const AnswerSyntax kJson = SyntaxOf("json");
const AnswerSyntax kThinks{.reasoning = true};

TEST(AnswerParserTest, TextStaysAsItIs) {
  for (const std::string text :
       {"", " \n", " a <b\n\n", "{\"name\": \"f\"", "<tool_call", "[1]x ",
        "<tool_call>x</tool_call> ", "<tool_call>{\"name\": 1}", "<think>"}) {
    EXPECT_EQ(ParseAll({}, text), text);
    EXPECT_EQ(ParseAll(kTags, text), text);
    EXPECT_EQ(ParseAll(kJson, text), text);
  }
  EXPECT_EQ(ParseAll(kThinks, "  a<think>b</think>"), "  a<think>b</think>");
}

TEST(AnswerParserTest, ReasoningEndsAtItsTag) {
  EXPECT_EQ(ParseAll(kThinks, "<think>\n a b\n\nc \n</think>\n\nyes \n"), "r(a b\n\nc)yes \n");
  EXPECT_EQ(ParseAll(kThinks, "\n<think></think>\n\nyes"), "yes");
  EXPECT_EQ(ParseAll(kThinks, "<think> a < </thin"), "r(a < </thin)");
  EXPECT_EQ(ParseAll({.reasoning = true, .opens_reasoning = true}, "\na</think>b"), "r(a)b");
  AnswerSyntax both = kTags;
  both.reasoning = true;
  EXPECT_EQ(ParseAll(both,
                     "<think>a</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": "
                     "{}}</tool_call>"),
            "r(a)c(f {})");
}

TEST(AnswerParserTest, CallsBetweenTags) {
  const std::string f =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</x>\\\"\"}}\n</tool_call>";
  const std::string g = "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(ParseAll(kTags, f), "c(f {\"a\":\"}</x>\\\"\"})");
  EXPECT_EQ(ParseAll(kTags, "Well \n\n" + f + "\n" + g + "\n"),
            "Wellc(f {\"a\":\"}</x>\\\"\"})c(g {})");
  EXPECT_EQ(ParseAll(kTags, g + " and"), "c(g {}) and");
  EXPECT_EQ(ParseAll(kTags, g.substr(0, g.size() - 12)), "c(g {})");
  EXPECT_EQ(ParseAll(kTags, "a " + g.substr(0, g.size() - 13)), "ac(g {})");
  EXPECT_EQ(ParseAll(kTags, g.substr(0, g.size() - 12) + "\n<tool_call>]"),
            "c(g {})\n<tool_call>]");
  const std::string begun = "a " + g.substr(0, 20);  // the name is not complete
  EXPECT_EQ(ParseAll(kTags, begun), begun);
  const std::string open = "<tool_call>f" + std::string(300, 'x');
  EXPECT_EQ(ParseAll(SyntaxOf("glm"), open + "<tool_call>f\n</tool_call>"), open + "c(f {})");
  AnswerSyntax one = kTags;
  one.one_call = true;
  EXPECT_EQ(ParseAll(one, g + f + "and so on"), "c(g {})");
}

TEST(AnswerParserTest, CallsAsJson) {
  EXPECT_EQ(ParseAll(kJson, "{\"name\": \"f\", \"parameters\": {\"a\": [1, \"]\"]}}"),
            "c(f {\"a\":[1,\"]\"]})");
  EXPECT_EQ(
      ParseAll(kJson,
               " [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}] "),
      "c(f {})c(g {})");
  const std::string other = "{\"name\": \"other\", \"parameters\": {}} ";
  EXPECT_EQ(ParseAll(kJson, other), other);
  const std::string later = "A: {\"name\": \"f\", \"parameters\": {}}";
  EXPECT_EQ(ParseAll(kJson, later), later);
}

}  // namespace
}  // namespace kvcache::answer_parser_test
