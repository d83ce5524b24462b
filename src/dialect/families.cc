// The dialects. An entry is a way of writing, not a model: many families share one.
#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/dialect.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

// Qwen 2.5 and 3, Hermes 2 Pro and 3, QwQ, Granite 4, SmolLM3, …
Dialect Hermes() {
  return {.name = "hermes",
          .calls = {.form = CallForm::kObject,
                    .section_begin = "<tool_call>",
                    .section_end = "</tool_call>"}};
}

// An array of objects between two markers.
Dialect Array(const char* name, const char* begin, const char* end) {
  return {
      .name = name,
      .calls = {
          .form = CallForm::kObject, .section_begin = begin, .section_end = end, .listed = true}};
}

// Parameters as <parameter=name>value</parameter> in <function=name>: Qwen 3 Coder, Nemotron 3, StepFun.
Dialect Functions(const char* name, const char* begin, const char* end, bool padded) {
  return {.name = name,
          .calls = {.form = CallForm::kParameters,
                    .section_begin = begin,
                    .section_end = end,
                    .call_begin = "<function=",
                    .call_end = "</function>",
                    .name_end = ">",
                    .parameter_begin = "<parameter=",
                    .parameter_name_end = ">",
                    .parameter_end = "</parameter>",
                    .padded = padded}};
}

Dialect SeedOss() {
  Dialect seed = Functions("seed-oss", "<seed:tool_call>", "</seed:tool_call>", false);
  seed.thoughts = {"<seed:think>", "</seed:think>"};
  return seed;
}

// Parameters as <parameter name="name">value</parameter> in <invoke name="name">.
Dialect MiniMax() {
  return {.name = "minimax",
          .calls = {.form = CallForm::kParameters,
                    .section_begin = "<minimax:tool_call>",
                    .section_end = "</minimax:tool_call>",
                    .call_begin = "<invoke name=\"",
                    .call_end = "</invoke>",
                    .name_end = "\">",
                    .shared = true,
                    .parameter_begin = "<parameter name=\"",
                    .parameter_name_end = "\">",
                    .parameter_end = "</parameter>"}};
}

// The same, with a mark in each tag, and whether a value is a string.
Dialect DeepSeekTags(const char* name, const char* section) {
  const std::string mark = "｜DSML｜";
  return {.name = name,
          .calls = {.form = CallForm::kParameters,
                    .section_begin = "<" + mark + section + ">",
                    .section_end = "</" + mark + section + ">",
                    .call_begin = "<" + mark + "invoke name=\"",
                    .call_end = "</" + mark + "invoke>",
                    .name_end = "\">",
                    .shared = true,
                    .parameter_begin = "<" + mark + "parameter name=\"",
                    .parameter_name_end = "\" string=\"",
                    .value_begin = "\">",
                    .parameter_end = "</" + mark + "parameter>"}};
}

Dialect Glm() {
  return {.name = "glm",
          .calls = {.form = CallForm::kParameters,
                    .call_begin = "<tool_call>",
                    .call_end = "</tool_call>",
                    .parameter_begin = "<arg_key>",
                    .parameter_name_end = "</arg_key>",
                    .value_begin = "<arg_value>",
                    .parameter_end = "</arg_value>"}};
}

// A name and JSON, between markers of DeepSeek.
Dialect DeepSeek(const char* name, const char* call_begin, const char* name_end,
                 const char* call_end) {
  return {.name = name,
          .calls = {.form = CallForm::kNamed,
                    .section_begin = "<｜tool▁calls▁begin｜>",
                    .section_end = "<｜tool▁calls▁end｜>",
                    .call_begin = call_begin,
                    .call_end = call_end,
                    .name_end = name_end,
                    .shared = true}};
}

Dialect Kimi() {
  return {.name = "kimi",
          .calls = {.form = CallForm::kNamed,
                    .section_begin = "<|tool_calls_section_begin|>",
                    .section_end = "<|tool_calls_section_end|>",
                    .call_begin = "<|tool_call_begin|>",
                    .call_end = "<|tool_call_end|>",
                    .name_end = "<|tool_call_argument_begin|>",
                    .name_prefix = "functions.",
                    .numbered = true,
                    .shared = true}};
}

Dialect Hunyuan() {
  return {.name = "hunyuan",
          .calls = {.form = CallForm::kNamed,
                    .section_begin = "<tool_calls>",
                    .section_end = "</tool_calls>",
                    .call_begin = "<tool_call>function<tool_sep>",
                    .call_end = "```</tool_call>",
                    .name_end = "\n```json\n",
                    .shared = true}};
}

// A name and JSON: Mistral from Small 3.2 and Devstral on, Magistral, Ministral 3.
Dialect MistralNamed() {
  return {.name = "mistral-args",
          .thoughts = {"[THINK]", "[/THINK]"},
          .calls = {.form = CallForm::kNamed,
                    .call_begin = "[TOOL_CALLS]",
                    .name_end = "[ARGS]",
                    .id_begin = "[CALL_ID]"}};
}

Dialect Functionary() {
  return {.name = "functionary",
          .calls = {.form = CallForm::kNamed,
                    .call_begin = "<function=",
                    .call_end = "</function>",
                    .name_end = ">"}};
}

Dialect Command() {
  Dialect command = Array("command", "<|START_ACTION|>", "<|END_ACTION|>");
  command.thoughts = {"<|START_THINKING|>", "<|END_THINKING|>"};
  command.text_begin = "<|START_RESPONSE|>";
  command.text_end = "<|END_RESPONSE|>";
  command.calls.name_keys = {"tool_name", "name"};
  command.calls.argument_keys = {"parameters", "arguments"};
  return command;
}

Dialect Apertus() {
  return {.name = "apertus",
          .thoughts = {"<|inner_prefix|>", "<|inner_suffix|>"},
          .calls = {.form = CallForm::kKeyed,
                    .section_begin = "<|tools_prefix|>",
                    .section_end = "<|tools_suffix|>",
                    .listed = true}};
}

Dialect Apriel() {
  Dialect apriel = Array("tool-calls", "<tool_calls>", "</tool_calls>");
  return apriel;
}

Dialect Python(const char* name, const char* begin, const char* end, bool listed) {
  return {
      .name = name,
      .calls = {
          .form = CallForm::kPython, .section_begin = begin, .section_end = end, .listed = listed}};
}

Dialect Lfm() {
  Dialect lfm = Python("lfm", "<|tool_call_start|>", "<|tool_call_end|>", true);
  lfm.signs = {"List of tools: "};
  return lfm;
}

Dialect Phi() {
  Dialect phi = Array("phi", "<|tool_call|>", "<|/tool_call|>");
  phi.signs = {"<|tool|>", "<|/tool|>"};
  return phi;
}

Dialect Gemma(const char* name, const char* begin, const char* end, const char* quote) {
  return {.name = name,
          .thoughts = {"<|channel>thought", "<channel|>"},
          .calls = {.form = CallForm::kBraces,
                    .call_begin = std::string(begin) + "call:",
                    .call_end = end,
                    .quote = quote}};
}

Dialect Harmony() {
  return {.name = "harmony",
          .thoughts = {"<|channel|>analysis<|message|>", "<|end|>"},
          .calls = {.form = CallForm::kChannels,
                    .section_begin = "<|start|>",
                    .call_begin = "<|channel|>",
                    .call_end = "<|end|>",
                    .name_end = "<|message|>",
                    .value_begin = "<|constrain|>"}};
}

Dialect GigaChat(const char* name, const char* begin) {
  return {.name = name, .calls = {.form = CallForm::kObject, .section_begin = begin}};
}

// Messages to a recipient: ">>>all" begins a text.
Dialect FunctionaryRecipients() {
  return {.name = "functionary-v3.2",
          .text_begin = ">>>all\n",
          .calls = {
              .form = CallForm::kNamed, .call_begin = ">>>", .name_end = "\n", .known_only = true}};
}

// An object in tags of another spelling; the template names the role of users so.
Dialect NemotronMini() {
  return {.name = "nemotron-mini",
          .calls = {.form = CallForm::kObject,
                    .section_begin = "<toolcall>",
                    .section_end = "</toolcall>"},
          .signs = {"<extra_id_1>User", "<tool> "}};
}

// GLM's tags, each with a word behind the name.
Dialect Hunyuan3() {
  return {.name = "hunyuan-v3",
          .thoughts = {"<think:opensource>", "</think:opensource>"},
          .calls = {.form = CallForm::kParameters,
                    .section_begin = "<tool_calls:opensource>",
                    .section_end = "</tool_calls:opensource>",
                    .call_begin = "<tool_call:opensource>",
                    .call_end = "</tool_call:opensource>",
                    .name_end = "<tool_sep:opensource>",
                    .shared = true,
                    .parameter_begin = "<arg_key:opensource>",
                    .parameter_name_end = "</arg_key:opensource>",
                    .value_begin = "<arg_value:opensource>",
                    .parameter_end = "</arg_value:opensource>"}};
}

Dialect MiniCpm() {
  Dialect minicpm =
      Python("minicpm", "<|tool_call_start|>\n```python", "```\n<|tool_call_end|>", false);
  minicpm.thoughts = {"<|thought_start|>", "<|thought_end|>"};
  return minicpm;
}

// Replaces the control tokens in a marker by the same between edges.
void Bind(const Vocabulary& vocabulary, Dialect& dialect, std::string& marker) {
  if (marker.empty()) return;
  for (const std::int32_t token : vocabulary.special_tokens()) {
    const TokenKind kind = vocabulary.kind(token);
    const std::string text(vocabulary.text(token));
    const bool channels = dialect.calls.form == CallForm::kChannels;
    const bool bound = kind == TokenKind::kControl || (channels && kind == TokenKind::kUserDefined);
    if (!bound || text.empty()) continue;
    const std::size_t at = marker.find(text);
    if (at == std::string::npos || (at > 0 && marker[at - 1] == kEdge)) continue;
    marker.insert(at + text.size(), 1, kEdge);
    marker.insert(at, 1, kEdge);
    dialect.marker_tokens.push_back(token);
  }
}

}  // namespace

const std::vector<Dialect>& Dialects() {
  static const std::vector<Dialect> all = {
      Harmony(),
      Kimi(),
      DeepSeek("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
               "```<｜tool▁call▁end｜>"),
      DeepSeek("deepseek-v3.1", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
      DeepSeekTags("deepseek-v3.2", "function_calls"),
      DeepSeekTags("deepseek-tags", "tool_calls"),
      MistralNamed(),
      Array("mistral", "[TOOL_CALLS]", ""),
      Command(),
      Apertus(),
      Functions("qwen-coder", "<tool_call>", "</tool_call>", true),
      SeedOss(),
      MiniMax(),
      Glm(),
      Hermes(),
      Hunyuan(),
      Apriel(),
      Array("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
      Array("granite", "<|tool_call|>", ""),
      Phi(),
      Array("firefunction", "functools", ""),
      GigaChat("gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>"),
      GigaChat("gigachat-v3.1", "<|function_call|>"),
      FunctionaryRecipients(),
      Functionary(),
      NemotronMini(),
      Hunyuan3(),
      Lfm(),
      MiniCpm(),
      Gemma("gemma", "<|tool_call>", "<tool_call|>", "<|\"|>"),
      Gemma("function-gemma", "<start_function_call>", "<end_function_call>", "<escape>"),
      {.name = "json", .calls = {.form = CallForm::kObject}},
      Python("python", "", "", true),
      {.name = "plain"},
  };
  return all;
}

const std::vector<ThoughtSyntax>& ThoughtSyntaxes() {
  static const std::vector<ThoughtSyntax> all = {
      {"<think>", "</think>"},
      {"<seed:think>", "</seed:think>"},
      {"<think:opensource>", "</think:opensource>"},
      {"[THINK]", "[/THINK]"},
      {"<|START_THINKING|>", "<|END_THINKING|>"},
      {"<|channel>thought", "<channel|>"},
      {"<|inner_prefix|>", "<|inner_suffix|>"},
      {"<thought>", "</thought>"},
      {"<|thought_start|>", "<|thought_end|>"},
      {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
  };
  return all;
}

const Dialect* FindDialect(std::string_view name) {
  const auto found = std::find_if(Dialects().begin(), Dialects().end(),
                                  [&](const Dialect& each) { return each.name == name; });
  return found == Dialects().end() ? nullptr : &*found;
}

Status CheckDialect(const std::string& name) {
  if (FindDialect(name) != nullptr) return Status::Ok();
  std::string names;
  for (const Dialect& each : Dialects()) names += StrCat(names.empty() ? "" : ", ", each.name);
  return InvalidArgument(StrCat("unknown dialect ", Quoted(name), "; known: ", names));
}

SharedDialect PlainDialect() {
  return std::make_shared<const Dialect>(*FindDialect("plain"));
}

Dialect BindDialect(Dialect dialect, const Tokenizer& tokenizer) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  CallSyntax& calls = dialect.calls;
  for (std::string* marker :
       {&dialect.thoughts.begin, &dialect.thoughts.end, &dialect.text_begin, &dialect.text_end,
        &calls.section_begin, &calls.section_end, &calls.call_begin, &calls.call_end,
        &calls.name_end, &calls.id_begin, &calls.parameter_begin, &calls.parameter_name_end,
        &calls.value_begin, &calls.parameter_end, &calls.quote}) {
    Bind(vocabulary, dialect, *marker);
  }
  std::vector<std::int32_t>& tokens = dialect.marker_tokens;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return dialect;
}

}  // namespace kvcache
