// Each dialect on a text with two calls, cut at every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/strings.h"
#include "dialect/answer_parser.h"

namespace kvcache::families_test {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

// Writes the parts as one text: r(…) reasoning, c(name arguments), and text as it is.
class Writer {
 public:
  void Add(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) Add(part);
  }
  std::string Finish() { return out_ + (thinks_ ? ")" : ""); }

 private:
  void Add(const AnswerPart& part) {
    if (thinks_ != (part.kind == Kind::kReasoning)) out_ += thinks_ ? ")" : "r(";
    thinks_ = part.kind == Kind::kReasoning;
    switch (part.kind) {
      case Kind::kCallBegin: arguments_.clear(); return;
      case Kind::kCallArguments: arguments_ += part.text; return;
      case Kind::kCallEnd:
        if (Json::accept(arguments_)) {
          EXPECT_EQ(Json::parse(arguments_), part.call.arguments);
        }
        out_ += StrCat("c(", part.call.name, " ", part.call.arguments.dump(), ")");
        return;
      case Kind::kText:
      case Kind::kReasoning: out_ += part.text; return;
    }
  }

  std::string out_, arguments_;
  bool thinks_ = false;
};

AnswerSyntax SyntaxOf(const std::string& dialect) {
  const Json parameters = Json::parse(
      R"({"properties": {"s": {"type": "string"}, "n": {"type": "integer"},
          "l": {"type": "array"}, "b": {"type": "boolean"}}})");
  return {.dialect = std::make_shared<const Dialect>(*FindDialect(dialect)),
          .reasoning = true,
          .calls = true,
          .tools = {{.name = "get", .parameters = parameters},
                    {.name = "get_all", .parameters = parameters}}};
}

std::string Parse(const AnswerSyntax& syntax, std::string_view text, std::size_t size) {
  AnswerParser parser(syntax);
  Writer writer;
  for (std::size_t at = 0; at < text.size(); at += size) {
    writer.Add(parser.Push(text.substr(at, size)));
  }
  writer.Add(parser.Flush());
  return writer.Finish();
}

// Parses a text whole, byte by byte, and cut once at every byte, which must be the same.
std::string ParseAll(const AnswerSyntax& syntax, const std::string& text) {
  std::string whole = Parse(syntax, text, text.size() + 1);
  for (const std::size_t size : {1U, 2U, 3U, 7U})
    EXPECT_EQ(Parse(syntax, text, size), whole) << text;
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    AnswerParser parser(syntax);
    Writer writer;
    writer.Add(parser.Push(std::string_view(text).substr(0, cut)));
    writer.Add(parser.Push(std::string_view(text).substr(cut)));
    writer.Add(parser.Flush());
    EXPECT_EQ(writer.Finish(), whole) << text << " cut at " << cut;
  }
  return whole;
}

struct Case {
  const char* dialect;
  const char* text;
};

// Each text is: words, a call with a string, a number and an array, and a call without arguments.
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"hermes",
       "Well\n<tool_call>\n{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}}\n</tool_call>\n<tool_call>\n{\"name\": \"get\", \"arguments\": "
       "{}}\n</tool_call>"},
      {"hermes",
       "Well\n<tool_call>[{\"id\": \"x\", \"type\": \"function\", \"function\": {\"arguments\": "
       "\"{\\\"s\\\": \\\"a\\\\\\\"}b\\\", \\\"n\\\": 1, \\\"l\\\": [1, \\\"]\\\"]}\", \"name\": "
       "\"get_all\"}}, {\"name\": \"get\", \"arguments\": null}]</tool_call>"},
      {"qwen-coder",
       "Well\n\n<tool_call>\n<function=get_all>\n<parameter=s>\na\"}b\n</parameter>\n"
       "<parameter=n>\n1\n</parameter>\n<parameter=l>\n[1, \"]\"]\n</parameter>\n</function>\n"
       "</tool_call>\n<tool_call>\n<function=get>\n</function>\n</tool_call>"},
      {"seed-oss",
       "Well\n<seed:tool_call>\n<function=get_all>\n<parameter=s>a\"}b</parameter>\n"
       "<parameter=n>1</parameter>\n<parameter=l>[1, \"]\"]</parameter>\n</function>\n"
       "</seed:tool_call>\n<seed:tool_call>\n<function=get>\n</function>\n</seed:tool_call>"},
      {"minimax",
       "Well\n<minimax:tool_call>\n<invoke name=\"get_all\">\n<parameter name=\"s\">a\"}b"
       "</parameter>\n<parameter name=\"n\">1</parameter>\n<parameter name=\"l\">[1, \"]\"]"
       "</parameter>\n</invoke>\n<invoke name=\"get\">\n</invoke>\n</minimax:tool_call>"},
      {"deepseek-v3.2",
       "Well\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_all\">\n<｜DSML｜parameter "
       "name=\"s\" string=\"true\">a\"}b</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
       "string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"l\" string=\"false\">[1, "
       "\"]\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get\">\n</"
       "｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {"glm",
       "Well\n<tool_call>get_all\n<arg_key>s</arg_key>\n<arg_value>a\"}b</arg_value>\n<arg_key>n"
       "</arg_key>\n<arg_value>1</arg_value>\n<arg_key>l</arg_key>\n<arg_value>[1, \"]\"]"
       "</arg_value>\n</tool_call>\n<tool_call>get</tool_call>"},
      {"deepseek",
       "Well<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_all\n```json\n"
       "{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, \"]\"]}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁"
       "begin｜>function<｜tool▁sep｜>get\n```json\n{}\n```<｜tool▁call▁end｜><"
       "｜tool▁calls▁end｜>"},
      {"deepseek-v3.1",
       "Well<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_all<｜tool▁sep｜>{\"s\": \"a\\\"}b\", "
       "\"n\": 1, \"l\": [1, \"]\"]}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"kimi",
       "Well<|tool_calls_section_begin|><|tool_call_begin|>functions.get_all:0<|tool_call_argument_"
       "begin|>{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, "
       "\"]\"]}<|tool_call_end|><|tool_call_begin|>"
       "functions.get:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"},
      {"hunyuan",
       "Well<tool_calls><tool_call>function<tool_sep>get_all\n```json\n{\"s\": \"a\\\"}b\", \"n\": "
       "1, "
       "\"l\": [1, \"]\"]}\n```</tool_call>\n<tool_call>function<tool_sep>get\n```json\n{}\n```"
       "</tool_call></tool_calls>"},
      {"mistral",
       "Well[TOOL_CALLS] [{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}, \"id\": \"123456789\"}, {\"name\": \"get\", \"arguments\": {}, \"id\": "
       "\"abcdefghi\"}]"},
      {"mistral-args",
       "Well[TOOL_CALLS]get_all[ARGS]{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, "
       "\"]\"]}[TOOL_CALLS]get"
       "[CALL_ID]abcdefghi[ARGS]{}"},
      {"functionary",
       "Well<function=get_all>{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, "
       "\"]\"]}</function><function="
       "get>{}</function>"},
      {"command",
       "<|START_RESPONSE|>Well<|END_RESPONSE|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
       "\"tool_name\": \"get_all\", \"parameters\": {\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, "
       "\"]\"]}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"get\", \"parameters\": {}}\n]"
       "<|END_ACTION|>"},
      {"apertus",
       "Well<|tools_prefix|>[{\"get_all\": {\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, \"]\"]}}, "
       "{\"get\": {}}]<|tools_suffix|>"},
      {"tool-calls",
       "Well\n<tool_calls>[{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}, \"id\": \"1\"}, {\"name\": \"get\", \"arguments\": {}}]</tool_calls>"},
      {"nemotron",
       "Well <TOOLCALL>[{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}}, {\"name\": \"get\", \"arguments\": {}}]</TOOLCALL>"},
      {"granite",
       "Well<|tool_call|>[{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}}, {\"name\": \"get\", \"arguments\": {}}]"},
      {"phi",
       "Well<|tool_call|>[{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}}, {\"name\": \"get\", \"arguments\": {}}]<|/tool_call|>"},
      {"firefunction",
       "Well functools[{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}}, {\"name\": \"get\", \"arguments\": {}}]"},
      {"gigachat",
       "Well<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_all\", \"arguments\": "
       "{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, \"]\"]}}<|message_sep|>\n\nfunction call"
       "<|role_sep|>\n{\"name\": \"get\", \"arguments\": {}}"},
      {"gigachat-v3.1",
       "Well<|function_call|>{\"name\": \"get_all\", \"arguments\": {\"s\": \"a\\\"}b\", \"n\": 1, "
       "\"l\": [1, \"]\"]}}<|function_call|>{\"name\": \"get\", \"arguments\": {}}"},
      {"functionary-v3.2",
       ">>>all\nWell>>>get_all\n{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, \"]\"]}>>>get\n{}"},
      {"nemotron-mini",
       "Well <toolcall> {\"type\": \"function\", \"name\": \"get_all\", \"arguments\": {\"s\": "
       "\"a\\\"}b\", \"n\": 1, \"l\": [1, \"]\"]}} </toolcall>\n<toolcall> {\"name\": \"get\", "
       "\"arguments\": {}} </toolcall>"},
      {"hunyuan-v3",
       "Well<tool_calls:opensource>\n<tool_call:opensource>get_all<tool_sep:opensource>\n"
       "<arg_key:opensource>s</arg_key:opensource>\n<arg_value:opensource>a\"}b"
       "</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n"
       "<arg_value:opensource>1</arg_value:opensource>\n<arg_key:opensource>l"
       "</arg_key:opensource>\n<arg_value:opensource>[1, \"]\"]</arg_value:opensource>\n"
       "</tool_call:opensource>\n<tool_call:opensource>get<tool_sep:opensource>\n"
       "</tool_call:opensource>\n</tool_calls:opensource>"},
      {"lfm",
       "Well<|tool_call_start|>[get_all(s='a\"}b', n=1, l=[1, \"]\"]), get()]<|tool_call_end|>"},
      {"minicpm",
       "Well<|tool_call_start|>\n```python\nget_all(s=\"a\\\"}b\", n=1, l=(1, \"]\"))\nget()\n```\n"
       "<|tool_call_end|>"},
      {"gemma",
       "Well<|tool_call>call:get_all{s:<|\"|>a\"}b<|\"|>,n:1,l:[1,<|\"|>]<|\"|>]}<tool_call|>"
       "<|tool_call>call:get{}<tool_call|>"},
      {"function-gemma",
       "Well<start_function_call>call:get_all{s:<escape>a\"}b<escape>,n:1,l:[1,<escape>]<escape>]}"
       "<end_function_call><start_function_call>call:get{}<end_function_call>"},
      {"harmony",
       "<|channel|>commentary<|message|>Well<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.get_all <|constrain|>json<|message|>{\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, "
       "\"]\"]}<|end|><|start|>assistant to=functions.get<|channel|>commentary json<|message|>{}"},
      {"json",
       "{\"name\": \"get_all\", \"parameters\": {\"s\": \"a\\\"}b\", \"n\": 1, \"l\": [1, "
       "\"]\"]}}\n"
       "{\"name\": \"get\", \"parameters\": {}}"},
      {"python", "[get_all(s=\"a\\\"}b\", n=1, l=[1, ']']), get()]"},
  };
  return cases;
}

TEST(FamiliesTest, CallsOfEachDialect) {
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.dialect);
    const bool bare = FindDialect(each.dialect)->calls.bare();
    EXPECT_EQ(
        ParseAll(SyntaxOf(each.dialect), each.text),
        std::string(bare ? "" : "Well") + R"(c(get_all {"s":"a\"}b","n":1,"l":[1,"]"]})c(get {}))");
  }
}

// The prompt of this dialect has the first mark. Words behind a mark that are no tool's name are text.
TEST(FamiliesTest, RecipientsAreTools) {
  AnswerSyntax syntax = SyntaxOf("functionary-v3.2");
  EXPECT_EQ(ParseAll(syntax, ">>>all\nTry\n>>> f(1)\n2"), "Try\n>>> f(1)\n2");
  EXPECT_EQ(ParseAll(syntax, "Just text >>>"), "Just text >>>");
  syntax.begun = ">>>";
  EXPECT_EQ(ParseAll(syntax, "all\nWell>>>get\n{}"), "Wellc(get {})");
  EXPECT_EQ(ParseAll(syntax, "get\n{\"n\": 1}"), "c(get {\"n\":1})");
  EXPECT_EQ(ParseAll(syntax, "all\n"), "");
}

// A control token in a name is no part of it.
TEST(FamiliesTest, NamesHaveNoControlTokens) {
  AnswerSyntax syntax = SyntaxOf("gemma");
  EXPECT_EQ(ParseAll(syntax, "<|tool_call>call:ge\xff<a>\xfft{}<tool_call|>"),
            "<|tool_call>call:get{}<tool_call|>");
  syntax = SyntaxOf("harmony");
  syntax.one_call = true;
  EXPECT_EQ(ParseAll(syntax,
                     "<|channel|>commentary to=functions.get<|message|>{}<|end|><|start|>"
                     "assistant<|channel|>final<|message|>Well"),
            "c(get {})");
}

// Without tools, words with a recipient are text.
TEST(FamiliesTest, ChannelsWithoutToolsHaveNoCalls) {
  AnswerSyntax syntax = SyntaxOf("harmony");
  syntax.calls = false;
  EXPECT_EQ(ParseAll(syntax,
                     "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=functions.get"
                     "<|channel|>commentary json<|message|>{\"n\": 1}"),
            "r(Hm){\"n\": 1}");
}

// A recipient without a name, and one that is no tool, get text.
TEST(FamiliesTest, RecipientsWithoutANameHaveNoCalls) {
  const AnswerSyntax syntax = SyntaxOf("harmony");
  const auto said = [&](const std::string& recipient) {
    return ParseAll(syntax, "<|start|>assistant to=" + recipient +
                                "<|channel|>commentary json<|message|>{\"n\": 1}");
  };
  EXPECT_EQ(said("functions."), "{\"n\": 1}");
  EXPECT_EQ(said("user"), "{\"n\": 1}");
  EXPECT_EQ(said("functions.user"), "c(user {\"n\":1})");
  EXPECT_EQ(said("user_list"), "c(user_list {\"n\":1})");
}

// Callers must not run a call whose arguments the model broke off, or that are no object.
TEST(FamiliesTest, CallsSayWhetherTheyAreComplete) {
  const auto complete = [](const char* dialect, const std::string& text) {
    AnswerParser parser(SyntaxOf(dialect));
    std::vector<AnswerPart> parts = parser.Push(text);
    for (AnswerPart& part : parser.Flush()) parts.push_back(part);
    EXPECT_FALSE(parts.empty()) << text;
    return !parts.empty() && parts.back().kind == Kind::kCallEnd && parts.back().call.complete;
  };
  EXPECT_TRUE(
      complete("hermes", R"(<tool_call>{"name": "get", "arguments": {"s": "/a"}}</tool_call>)"));
  EXPECT_FALSE(complete("hermes", R"(<tool_call>{"name": "get", "arguments": {"s": "/a)"));
  EXPECT_FALSE(
      complete("hermes", R"(<tool_call>{"name": "get", "arguments": {"s": oops}}</tool_call>)"));
  EXPECT_FALSE(complete("hermes", R"(<tool_call>{"name": "get", "arguments": [1]}</tool_call>)"));
  EXPECT_TRUE(complete("python", "[get(s='/a')]"));
  EXPECT_FALSE(complete("python", "[get(s='/a"));
  EXPECT_TRUE(
      complete("glm", "<tool_call>get\n<arg_key>s</arg_key><arg_value>/a</arg_value></tool_call>"));
  EXPECT_FALSE(complete("glm", "<tool_call>get\n<arg_key>s</arg_key><arg_value>/a"));
}

// A call that breaks off behind its name ends there.
TEST(FamiliesTest, BrokenCallsEnd) {
  EXPECT_EQ(ParseAll(SyntaxOf("apertus"),
                     "<|tools_prefix|>[{\"get\": {\"n\": 1}, \"x\": [\xff<a>\xff well"),
            "c(get {\"n\":1}) well");
}

// However much of it comes, a call whose name is reported ends with what was read.
TEST(FamiliesTest, UnclosedCallsEnd) {
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.dialect);
    const std::string text = each.text;
    for (std::size_t size = 1; size < text.size(); ++size) {
      const std::string cut = text.substr(0, size);
      AnswerParser parser(SyntaxOf(each.dialect));
      int open = 0;
      int calls = 0;
      std::vector<AnswerPart> parts = parser.Push(cut);
      for (AnswerPart& part : parser.Flush()) parts.push_back(part);
      for (const AnswerPart& part : parts) {
        if (part.kind == Kind::kCallBegin) ++open;
        if (part.kind == Kind::kCallEnd) --open, ++calls;
        EXPECT_TRUE(part.kind != Kind::kCallEnd || part.call.arguments.is_object());
        EXPECT_TRUE(open == 0 || open == 1);
      }
      EXPECT_EQ(open, 0) << cut;
    }
  }
}

TEST(FamiliesTest, EveryDialectHasACase) {
  for (const Dialect& each : Dialects()) {
    if (!each.has_calls() || each.name == "deepseek-tags") continue;
    const bool found = std::any_of(Cases().begin(), Cases().end(),
                                   [&](const Case& one) { return one.dialect == each.name; });
    EXPECT_TRUE(found) << each.name;
  }
}

}  // namespace
}  // namespace kvcache::families_test
