// A small template for each dialect is recognised, and what no parser reads is offered no tools.
#include "dialect/recognise.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/strings.h"
#include "dialect/history_form.h"

namespace kvcache::recognise_test {
namespace {

// A vocabulary of bytes with some markers.
std::unique_ptr<Tokenizer> MakeBytes(const std::vector<std::string>& markers) {
  TokenizerData data;
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    (void)std::snprintf(text, sizeof text, "<0x%02X>", byte);
    data.tokens.emplace_back(text);
    data.types.push_back(static_cast<int>(TokenKind::kByte));
  }
  for (const std::string& marker : markers) {
    data.tokens.push_back(marker);
    data.types.push_back(static_cast<int>(TokenKind::kControl));
  }
  return std::move(MakeTokenizer(data)).value();
}

// A template in the manner of ChatML. `calls` stands where a message has calls; `prompt` begins answers.
std::string Template(const std::string& calls, const std::string& prompt = "") {
  return "{% if tools %}T {{ tools | tojson }}\n{% endif %}"
         "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
         "{% if m.tool_calls %}" +
         calls +
         "{% endif %}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n" +
         prompt + "{% endif %}";
}

// Writes `call` for each call, with the name for # and the arguments for $.
std::string Each(const std::string& call) {
  std::string text;
  for (const char c : call) {
    if (c == '#') {
      text += "{{ c.function.name }}";
    } else if (c == '$') {
      text += "{{ c.function.arguments | tojson }}";
    } else {
      text += c;
    }
  }
  return "{% for c in m.tool_calls %}" + text + "{% endfor %}";
}

// The same, with a comma between two.
std::string Listed(const std::string& call) {
  std::string text = Each(call);
  const std::string end = "{% endfor %}";
  return text.substr(0, text.size() - end.size()) + "{% if not loop.last %}, {% endif %}" + end;
}

// Writes the call's begin, `pair` for each argument with the key for ? and the value for !, and its end.
std::string Pairs(const std::string& begin, const std::string& pair, const std::string& end) {
  std::string text;
  for (const char c : pair) {
    if (c == '?') {
      text += "{{ k }}";
    } else if (c == '!') {
      text += "{{ v if v is string else v | tojson }}";
    } else {
      text += c;
    }
  }
  return Each(begin + "{% for k, v in c.function.arguments.items() %}" + text + "{% endfor %}" +
              end);
}

struct Case {
  const char* dialect;
  std::string source;
};

std::vector<Case> Cases() {
  const std::string object = R"({"name": "#", "arguments": $})";
  const std::string value = R"({% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v }}{% endif %})";
  return {
      {"hermes", Template(Each("\n<tool_call>\n" + object + "\n</tool_call>"))},
      {"json", Template(Each(R"({"name": "#", "parameters": $})"))},
      {"json", Template("[" + Listed(object) + "]")},
      {"mistral", Template("[TOOL_CALLS] [" + Listed(object) + "]")},
      {"mistral-args", Template(Each("[TOOL_CALLS]#[ARGS]$"))},
      {"mistral-args", Template(Each("[TOOL_CALLS]#[CALL_ID]abcdefghi[ARGS]$"))},
      {"nemotron", Template("<TOOLCALL>[" + Listed(object) + "]</TOOLCALL>")},
      {"tool-calls", Template("<tool_calls>[" + Listed(object) + "]</tool_calls>")},
      {"firefunction", Template(" functools[" + Listed(object) + "]")},
      {"command", Template("<|START_ACTION|>[\n" +
                           Listed(R"({"tool_call_id": "0", "tool_name": "#", "parameters": $})") +
                           "\n]<|END_ACTION|>")},
      {"apertus", Template("<|tools_prefix|>[" + Listed(R"({"#": $})") + "]<|tools_suffix|>")},
      {"granite", Template("<|tool_call|>[" + Listed(object) + "]")},
      {"phi", Template("<|tool_call|>[" + Listed(object) + "]<|/tool_call|>")},
      {"functionary", Template(Each("<function=#>$</function>"))},
      {"gigachat", Template(Each("<|message_sep|>\n\nfunction call<|role_sep|>\n" + object))},
      {"kimi", Template("<|tool_calls_section_begin|>" +
                        Each("<|tool_call_begin|>functions.#:{{ loop.index0 }}"
                             "<|tool_call_argument_begin|>$<|tool_call_end|>") +
                        "<|tool_calls_section_end|>")},
      {"deepseek", Template("<｜tool▁calls▁begin｜>" +
                            Each("<｜tool▁call▁begin｜>function<｜tool▁sep｜>#\n```json\n$\n```"
                                 "<｜tool▁call▁end｜>") +
                            "<｜tool▁calls▁end｜>")},
      {"deepseek-v3.1", Template("<｜tool▁calls▁begin｜>" +
                                 Each("<｜tool▁call▁begin｜>#<｜tool▁sep｜>$<｜tool▁call▁end｜>") +
                                 "<｜tool▁calls▁end｜>")},
      {"hunyuan", Template("<tool_calls>" +
                           Each("<tool_call>function<tool_sep>#\n```json\n$\n```</tool_call>") +
                           "</tool_calls>")},
      {"qwen-coder",
       Template(Pairs("<tool_call>\n<function=#>\n", "<parameter=?>\n!\n</parameter>\n",
                      "</function>\n</tool_call>"))},
      {"seed-oss",
       Template(Pairs("<seed:tool_call>\n<function=#>\n", "<parameter=?>!</parameter>\n",
                      "</function>\n</seed:tool_call>"))},
      {"minimax", Template("<minimax:tool_call>\n" +
                           Pairs("<invoke name=\"#\">\n", "<parameter name=\"?\">!</parameter>\n",
                                 "</invoke>\n") +
                           "</minimax:tool_call>")},
      {"deepseek-v3.2",
       Template(
           "<｜DSML｜function_calls>\n" +
           Pairs("<｜DSML｜invoke name=\"#\">\n",
                 "<｜DSML｜parameter name=\"?\" string=\"{{ 'true' if v is string else 'false' "
                 "}}\">!</｜DSML｜parameter>\n",
                 "</｜DSML｜invoke>\n") +
           "</｜DSML｜function_calls>")},
      {"glm", Template(Pairs("\n<tool_call>#\n", "<arg_key>?</arg_key>\n<arg_value>!</arg_value>\n",
                             "</tool_call>"))},
      {"gemma", Template(Each("<|tool_call>call:#{kvcache_number:"
                              "{{ c.function.arguments.kvcache_number }},kvcache_text:<|\"|>"
                              "{{ c.function.arguments.kvcache_text }}<|\"|>}<tool_call|>"))},
      {"lfm", Template("<|tool_call_start|>[" +
                       Listed("#(kvcache_text='{{ c.function.arguments.kvcache_text }}', "
                              "kvcache_number={{ c.function.arguments.kvcache_number }})") +
                       "]<|tool_call_end|>")},
      {"python", Template("[" +
                          Listed("#(kvcache_text='{{ c.function.arguments.kvcache_text }}', "
                                 "kvcache_number={{ c.function.arguments.kvcache_number }})") +
                          "]")},
      {"harmony",
       "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|start|>{{ m.role }}"
       "{% if m.tool_calls %}{% set c = m.tool_calls[0] %}{% if m.tool_calls | length > 1 %}"
       "{{ raise_exception('one') }}{% endif %} to=functions.{{ c.function.name }}<|channel|>"
       "commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% else %}<|channel|>"
       "final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"},
      {"gigachat-v3.1", Template(Each("<|function_call|>" + object))},
      {"functionary-v3.2",
       "{{ tools }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
       "{% if m.content %}>>>all\n{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}"
       ">>>{{ c.function.name + '\n' + c.function.arguments }}{% endfor %}{% else %}"
       "{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
       "{% if add_generation_prompt %}<|im_start|>assistant\n>>>{% endif %}"},
      {"nemotron-mini",
       "{% for t in tools or [] %}<tool> {{ t | tojson }} </tool>{% endfor %}{% for m in messages "
       "%}"
       "{{ '<extra_id_1>User\n' if m.role == 'user' else '<extra_id_1>Assistant\n' }}"
       "{{ m.content }}\n{% endfor %}"},
      {"hunyuan-v3", Template("<tool_calls:opensource>\n" +
                              Pairs("<tool_call:opensource>#<tool_sep:opensource>\n",
                                    "<arg_key:opensource>?</arg_key:opensource>\n"
                                    "<arg_value:opensource>!</arg_value:opensource>\n",
                                    "</tool_call:opensource>\n") +
                              "</tool_calls:opensource>")},
      // The name is in the id alone.
      {"kimi", Template("<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>"
                        "{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
                        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>")},
      // What no parser reads.
      {"plain", Template(Each("<tool_call>\n<function=#></function></tool_call>"))},
      {"plain", Template("<calls>[" + Listed(object) + "]</calls>")},
      {"plain", Template(Each("CALL " + object))},
      {"plain", Template(Each("<|other|>" + object + "<|/other|>"))},
      {"plain", Template("")},
      {"plain", "{% for m in messages %}{{ m.content }}{% endfor %}"},
  };
}

Recognition Of(const std::string& source, const Tokenizer& tokenizer) {
  const auto format = ChatFormat::FromSource(source, "test", tokenizer);
  EXPECT_TRUE(format.ok()) << format.status().message() << "\n" << source;
  return format.ok() ? RecogniseDialect(*format, tokenizer) : Recognition{};
}

TEST(RecogniseTest, TheTemplateSaysHowCallsAreWritten) {
  const auto tokenizer = MakeBytes({});
  for (const Case& each : Cases()) {
    EXPECT_EQ(Of(each.source, *tokenizer).dialect.name, each.dialect) << each.source;
  }
}

TEST(RecogniseTest, TheTemplateSaysWhatComesBack) {
  const auto tokenizer = MakeBytes({});
  const Recognition text =
      Of(Template("<tool_calls>[" +
                  Listed(R"({"name": "#", "arguments": {{ '' + c.function.arguments }}})") +
                  "]</tool_calls>"),
         *tokenizer);
  EXPECT_EQ(text.dialect.name, "tool-calls");
  EXPECT_TRUE(text.history.text_arguments);
  const Recognition null =
      Of("{{ tools }}{% for m in messages %}{% if m.content is none %}" +
             Each("<tool_call>{\"name\": \"#\", \"arguments\": $}</tool_call>") +
             "{% else %}{{ m.content }}{% endif %}\n{% endfor %}",
         *tokenizer);
  EXPECT_EQ(null.dialect.name, "hermes");
  EXPECT_TRUE(null.history.null_content);
  nlohmann::ordered_json messages = nlohmann::ordered_json::parse(
      R"([{"role": "assistant", "content": "", "reasoning_content": "r",
           "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}])");
  Adapt({.text_arguments = true, .null_content = true, .thoughts_key = "thinking"}, messages);
  EXPECT_EQ(messages[0]["tool_calls"][0]["function"]["arguments"], R"({"a":1})");
  EXPECT_TRUE(messages[0]["content"].is_null());
  EXPECT_EQ(messages[0]["thinking"], "r");
}

// Tools come to the template where it reads them; if it reads none, they are a part of the system message.
TEST(RecogniseTest, TemplatesReadToolsInOtherPlaces) {
  const auto tokenizer = MakeBytes({"<|tool_call|>"});
  const std::string calls =
      R"({% if m.tool_calls %}<tool_call>{"name": "{{ m.tool_calls[0].function.name }}", )"
      R"("arguments": {{ m.tool_calls[0].function.arguments | tojson }}})"
      "</tool_call>{% endif %}{% if m.tool_calls | length > 1 %}{{ 1 / 0 }}{% endif %}";
  const std::string loop =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + calls;
  const auto prompt = [&](const std::string& source, const char* dialect) {
    const Recognition found = Of(source, *tokenizer);
    EXPECT_EQ(found.dialect.name, dialect) << source;
    ChatInput input;
    input.messages = {{{"role", "user"}, {"content", "question"}}};
    input.tools = {{{"type", "function"}, {"function", {{"name", "paint"}}}}};
    OfferTools(found.history, input);
    const auto written = ChatFormat::FromSource(source, "test", *tokenizer)->Write(input);
    return written.ok() ? written->text : written.status().message();
  };
  const std::string end = "<|im_end|>\n{% endfor %}";
  EXPECT_EQ(
      prompt("{{ functions + datetime[:0] }}\n" + loop + end, "hermes"),
      "[\n    {\n        \"name\": \"paint\"\n    }\n]\n<|im_start|>user\nquestion<|im_end|>\n");
  EXPECT_EQ(prompt(loop + "{% if m.tools %}{{ 'T' + m.tools }}{% endif %}" + end, "hermes"),
            "<|im_start|>system\nT[{\"name\":\"paint\"}]<|im_end|>\n"
            "<|im_start|>user\nquestion<|im_end|>\n");
  EXPECT_EQ(prompt(loop + "{% for t in m.tools or [] %}{{ t.function.name }}{% endfor %}" + end,
                   "hermes"),
            "<|im_start|>system\npaint<|im_end|>\n<|im_start|>user\nquestion<|im_end|>\n");
  const std::string text = prompt(loop + end, "hermes");
  EXPECT_TRUE(text.starts_with("<|im_start|>system\n# Tools\n")) << text;
  EXPECT_NE(text.find("\n{\"name\":\"paint\"}\n"), text.npos) << text;
  EXPECT_NE(text.find(R"(<tool_call>{"name": "FUNCTION", "arguments": {"PARAMETER": "VALUE"}})"
                      "</tool_call><|im_end|>\n<|im_start|>user\nquestion"),
            text.npos)
      << text;
  EXPECT_EQ(
      prompt("{% for m in messages %}{{ m.content }}{% if m.tools %}<|tool|>{{ m.tools + '' }}"
             "<|/tool|>{% endif %}{% endfor %}",
             "phi"),
      "<|tool|>[{\"name\":\"paint\"}]<|/tool|>question");
}

TEST(RecogniseTest, MarkersOfTheVocabularyAreTrusted) {
  const std::string source =
      "{% if tools %}Use <|tool_call|> for {{ tools | tojson }}{% endif %}"
      "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(Of(source, *MakeBytes({})).dialect.name, "plain");
  EXPECT_EQ(Of(source, *MakeBytes({"<|tool_call|>"})).dialect.name, "granite");
}

TEST(RecogniseTest, ThoughtsOfTemplates) {
  const auto tokenizer = MakeBytes({});
  const auto end = [&](const std::string& source) {
    const Recognition found = Of(source, *tokenizer);
    return found.reasons ? found.dialect.thoughts.end : "";
  };
  EXPECT_EQ(end(Template("")), "");
  EXPECT_EQ(end(Template("", "<think>\n")), "</think>");
  EXPECT_EQ(end(Template("", "<seed:think>")), "</seed:think>");
  EXPECT_EQ(end(Template("", "[THINK]a[/THINK]")), "[/THINK]");
  EXPECT_EQ(end(Template("", "<|channel>thought\n<channel|>")), "<channel|>");
  EXPECT_EQ(end("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"),
            "</think>");
  EXPECT_TRUE(EndsInside("a<think>\n", {"<think>", "</think>"}));
  EXPECT_FALSE(EndsInside("a</think>\n", {"<think>", "</think>"}));
  EXPECT_TRUE(EndsBehind("a</think>\n", {"<think>", "</think>"}));
}

// Markers that are control tokens are no markers as text.
TEST(RecogniseTest, EdgesAreBesideControlTokens) {
  const auto tokenizer = MakeBytes({"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"});
  const Dialect bound = BindDialect(*FindDialect("deepseek"), *tokenizer);
  EXPECT_EQ(bound.calls.call_begin,
            "\xff<｜tool▁call▁begin｜>\xff"
            "function\xff<｜tool▁sep｜>\xff");
  EXPECT_EQ(bound.calls.section_begin, "<｜tool▁calls▁begin｜>");
  EXPECT_EQ(bound.marker_tokens.size(), 2);
}

TEST(RecogniseTest, ANamedDialectIsTaken) {
  const auto tokenizer = MakeBytes({});
  const auto format = ChatFormat::FromSource(Template(""), "test", *tokenizer);
  const auto named = RecogniseAs("glm", *format, *tokenizer);
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->dialect.name, "glm");
  const auto other = RecogniseAs("klingon", *format, *tokenizer);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("harmony"), std::string::npos);
}

// A template that writes the text of a message with calls, but not the calls, gets them in the text.
TEST(RecogniseTest, CallsOfEarlierTurnsStandInTheTextOfTemplatesThatLeaveThemOut) {
  const auto tokenizer = MakeBytes({"<|tool_call_start|>", "<|tool_call_end|>"});
  const std::string source =
      "{% if tools %}List of tools: {{ tools | tojson }}\n{% endif %}{% for m in messages %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  const Recognition found = Of(source, *tokenizer);
  ASSERT_EQ(found.dialect.name, "lfm");
  ASSERT_EQ(found.history.text_calls.form, CallForm::kPython);
  nlohmann::ordered_json messages = nlohmann::ordered_json::parse(
      R"([{"role": "assistant", "content": "I look.",
           "tool_calls": [{"function": {"name": "f", "arguments": {"a": "b", "c": true}}}]},
          {"role": "assistant", "content": null,
           "tool_calls": [{"function": {"name": "g", "arguments": {}}}]}])");
  Adapt(found.history, messages);
  EXPECT_EQ(messages[0]["content"],
            "I look.\n\n<|tool_call_start|>[f(a=\"b\", c=True)]<|tool_call_end|>");
  EXPECT_EQ(messages[1]["content"], "<|tool_call_start|>[g()]<|tool_call_end|>");
  // The others get the calls as they are.
  EXPECT_EQ(
      Of(Template(Each("<tool_call>{\"name\": \"#\", \"arguments\": $}</tool_call>")), *tokenizer)
          .history.text_calls.form,
      CallForm::kNone);
}

}  // namespace
}  // namespace kvcache::recognise_test
