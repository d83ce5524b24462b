#include "dialect/model_dialect.h"

#include <memory>
#include <optional>
#include <utility>

#include "dialect/history_form.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns whether the template's variables say that the model is to think; none: they say nothing.
std::optional<bool> AsksForThoughts(const Json& variables) {
  for (const char* const name : {"enable_thinking", "thinking"}) {
    const Json value = variables.value(name, Json());
    if (value.is_boolean()) return value.get<bool>();
  }
  const Json effort = variables.value("reasoning_effort", Json());
  if (effort.is_string()) return effort != "none";
  return std::nullopt;
}

// Returns whether a template lets the model think if nothing is said: told not to, it writes another prompt.
bool ThinksUnasked(const ChatFormat& format, const ThoughtSyntax& thoughts) {
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", "question"}});
  const auto unasked = format.Probe(input);
  input.variables["enable_thinking"] = false;
  const auto without = format.Probe(std::move(input));
  return unasked.ok() && without.ok() && *unasked != *without && !EndsBehind(*unasked, thoughts);
}

}  // namespace

Result<ModelDialect> ModelDialect::Make(const MakeFormat& make_format, const Tokenizer& tokenizer,
                                        std::string_view dialect) {
  KVCACHE_ASSIGN_OR_RETURN(ChatFormat format, make_format(ToolUse::kNone));
  KVCACHE_ASSIGN_OR_RETURN(ChatFormat tool_format, make_format(ToolUse::kTools));
  auto known = dialect.empty() ? RecogniseDialect(tool_format, tokenizer)
                               : RecogniseAs(dialect, tool_format, tokenizer);
  if (!known.ok()) return std::move(known).TakeStatus();
  return ModelDialect(std::move(format), std::move(tool_format), std::move(known).value(),
                      tokenizer);
}

ModelDialect::ModelDialect(ChatFormat format, ChatFormat tool_format, Recognition known,
                           const Tokenizer& tokenizer)
    : format_(std::move(format)),
      tool_format_(std::move(tool_format)),
      thoughts_(known.dialect.thoughts),
      history_(std::move(known.history)),
      dialect_(std::make_shared<const Dialect>(BindDialect(std::move(known.dialect), tokenizer))),
      id_form_(IdFormOf(tool_format_, *dialect_)),
      reasons_(known.reasons),
      thinks_unasked_(reasons_ && ThinksUnasked(format_, thoughts_)) {}

Result<DialectPrompt> ModelDialect::Write(ChatInput input) const {
  DialectPrompt prompt{.answer = SyntaxOf(input)};
  AnswerSyntax& answer = prompt.answer;
  const bool thinks = AsksForThoughts(input.variables).value_or(thinks_unasked_);
  CompleteCalls(input.messages);
  RewriteIds(id_form_, dialect_->calls.name_prefix, input.messages);
  Adapt(history_, input.messages);
  const ChatFormat& format = this->format(input.tools);
  OfferTools(history_, input);
  KVCACHE_ASSIGN_OR_RETURN(prompt.written, format.Write(std::move(input), thoughts_));
  const ChatPrompt& written = prompt.written;
  answer.opens_reasoning =
      reasons_ && (written.open == OpenPart::kThoughts ||
                   (written.open == OpenPart::kNone && EndsInside(written.text, thoughts_)));
  // Thoughts come before a text, and never inside of it.
  if (written.open == OpenPart::kText) answer.reasoning = false;
  answer.may_reason = answer.reasoning && thinks && !EndsBehind(written.text, thoughts_);
  const std::string& call = dialect_->calls.call_begin;
  if (!call.empty() && written.text.ends_with(call)) answer.begun = call;
  return prompt;
}

AnswerSyntax ModelDialect::SyntaxOf(const ChatInput& input) const {
  AnswerSyntax answer{.dialect = dialect_,
                      .reasoning = reasons_,
                      .calls = dialect_->has_calls() && !input.tools.is_null()};
  AddOffered(input.tools, answer);
  return answer;
}

void AddOffered(const Json& tools, AnswerSyntax& answer) {
  for (const Json& tool : tools) {
    const auto found = tool.find("function");
    const Json& function = found == tool.end() ? tool : *found;
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string()) continue;
    answer.tools.push_back({.name = name, .parameters = function.value("parameters", Json())});
  }
}

}  // namespace kvcache
