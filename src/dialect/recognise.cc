#include "dialect/recognise.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/answer_parser.h"
#include "dialect/scan.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kQuestion = "kvcachequestion";
constexpr std::string_view kAnswer = "kvcacheanswer";
constexpr std::string_view kThought = "kvcachethought";
constexpr std::string_view kCallNames[] = {"kvcache_first", "kvcache_second"};
// Mistral's templates want nine letters or digits.
constexpr const char* kIds[] = {"callprob1", "callprob2"};

Json Parameters() {
  return {{"type", "object"},
          {"properties",
           {{"kvcache_text", {{"type", "string"}, {"description", "text"}}},
            {"kvcache_number", {{"type", "integer"}, {"description", "number"}}}}},
          {"required", Json::array({"kvcache_text"})}};
}

Json Arguments(std::size_t index) {
  return {{"kvcache_text", StrCat("kvcache ", index)}, {"kvcache_number", index + 3}};
}

Json Tools() {
  Json tools = Json::array();
  for (const std::string_view name : kCallNames) {
    tools.push_back(
        {{"type", "function"},
         {"function", {{"name", name}, {"description", "probe"}, {"parameters", Parameters()}}}});
  }
  return tools;
}

// A message with calls, as it comes back in a conversation.
Json CallMessage(std::size_t count, const HistoryForm& form) {
  Json calls = Json::array();
  for (std::size_t i = 0; i < count; ++i) {
    const Json arguments = Arguments(i);
    calls.push_back({{"id", kIds[i]},
                     {"type", "function"},
                     {"function",
                      {{"name", kCallNames[i]},
                       {"arguments", form.text_arguments ? Json(arguments.dump()) : arguments}}}});
  }
  return {{"role", "assistant"},
          {"content", form.null_content ? Json() : Json("")},
          {"tool_calls", std::move(calls)}};
}

// Renders messages behind a question. None: the template reports an error.
std::optional<std::string> Render(const ChatFormat& format, std::vector<Json> messages,
                                  GenerationPrompt generation = GenerationPrompt::kOmit) {
  ChatInput input;
  input.generation_prompt = generation;
  input.tools = Tools();
  input.messages.push_back({{"role", "user"}, {"content", kQuestion}});
  for (Json& message : messages) input.messages.push_back(std::move(message));
  auto written = format.Write(std::move(input));
  if (!written.ok()) return std::nullopt;
  return std::move(written->text);
}

// Returns what stands behind the last mark; all of the text if it has none.
std::string Behind(const std::string& text, std::string_view mark) {
  const std::size_t at = text.rfind(mark);
  return at == std::string::npos ? text : text.substr(at + mark.size());
}

// What stands around an answer of plain text.
struct Frame {
  std::string begin{}, end{};
};

Frame FrameOf(const ChatFormat& format) {
  const auto text = Render(format, {{{"role", "assistant"}, {"content", kAnswer}}});
  if (!text) return {};
  std::string begin = Behind(*text, kQuestion);
  begin.resize(std::min(begin.find(kAnswer), begin.size()));
  const bool written = text->find(kAnswer) != std::string::npos;
  return {.begin = std::move(begin), .end = written ? Behind(*text, kAnswer) : ""};
}

// Returns a text without white space.
std::string Dense(std::string text) {
  std::erase_if(text, [](char c) { return kWhiteSpace.find(c) != std::string_view::npos; });
  return text;
}

// Removes markers in front, such as <|python_start|>.
std::string_view WithoutMarkers(std::string_view text) {
  for (SkipSpaces(text); text.starts_with("<|"); SkipSpaces(text)) {
    const std::size_t end = text.find("|>");
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 2);
  }
  return text;
}

// Returns a text without the tokens that end answers.
std::string WithoutEnds(std::string text, const Tokenizer& tokenizer) {
  for (const std::int32_t token : tokenizer.vocabulary().special_tokens()) {
    if (!tokenizer.IsEndOfGeneration(token) || tokenizer.vocabulary().text(token).empty()) continue;
    const std::string end(tokenizer.vocabulary().text(token));
    for (std::size_t at = 0; (at = text.find(end)) != std::string::npos;)
      text.erase(at, end.size());
  }
  return text;
}

// What a parser reads: the text behind the last call, and the calls.
struct Reading {
  std::string rest{};
  std::vector<ToolCall> calls{};
};

Reading Read(const Dialect& dialect, std::string_view text) {
  AnswerSyntax syntax{.dialect = std::make_shared<const Dialect>(dialect),
                      .reasoning = dialect.calls.form == CallForm::kChannels,
                      .calls = true};
  for (const std::string_view name : kCallNames) {
    syntax.tools.push_back({.name = std::string(name), .parameters = Parameters()});
  }
  AnswerParser parser(std::move(syntax));
  Reading reading;
  std::vector<AnswerPart> parts = parser.Push(text);
  for (AnswerPart& part : parser.Flush()) parts.push_back(std::move(part));
  for (AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kText) reading.rest += part.text;
    if (part.kind != AnswerPart::Kind::kCallEnd) continue;
    reading.rest.clear();
    reading.calls.push_back(std::move(part.call));
  }
  return reading;
}

// The order of keys is the template's.
bool AreProbes(const std::vector<ToolCall>& calls, std::size_t count) {
  if (calls.size() != count) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const nlohmann::json read = calls[i].arguments;
    const nlohmann::json wanted = Arguments(i);
    if (calls[i].name != kCallNames[i] || read != wanted) return false;
  }
  return true;
}

// Returns whether a dialect reads the calls of a message, and nothing else, from what the template wrote.
bool Reads(const Dialect& dialect, const std::string& written, std::size_t count,
           const Frame& frame, const Tokenizer& tokenizer) {
  std::string text = Behind(written, kQuestion);
  const bool channels = dialect.calls.form == CallForm::kChannels;
  if (channels) {
    const std::size_t name = text.find(kCallNames[0]);
    const std::size_t begin = text.rfind("<|start|>assistant", name);
    if (name == std::string::npos || begin == std::string::npos) return false;
    text.erase(0, begin + std::string_view("<|start|>assistant").size());
  }
  if (dialect.calls.bare()) {
    // Calls without markers begin where a text begins.
    const std::string_view begin = Trimmed(frame.begin);
    const std::string_view all = Trimmed(text);
    if (!all.starts_with(begin)) return false;
    text = WithoutMarkers(all.substr(begin.size()));
  }
  const Reading reading = Read(dialect, text);
  if (!AreProbes(reading.calls, count)) return false;
  const std::string rest = Dense(reading.rest);
  std::string end = Dense(frame.end);
  if (channels || rest == end || Dense(WithoutEnds(reading.rest, tokenizer)).empty()) return true;
  const std::size_t wrapped = dialect.text_end.empty() ? end.npos : end.find(dialect.text_end);
  if (wrapped != end.npos) end.erase(wrapped, dialect.text_end.size());
  return rest == end;
}

// Returns whether one dialect alone begins its calls with this marker.
bool IsOwn(const Dialect& dialect, const std::string& marker) {
  return std::none_of(Dialects().begin(), Dialects().end(), [&](const Dialect& other) {
    return other.calls.form != dialect.calls.form &&
           (other.calls.section_begin == marker || other.calls.call_begin == marker);
  });
}

// Finds the dialect of a template that offers tools but writes no calls.
const Dialect* FindByMarkers(const ChatFormat& format, const Tokenizer& tokenizer) {
  const auto written = Render(format, {}, GenerationPrompt::kAdd);
  if (!written || written->find(kCallNames[0]) == std::string::npos) return nullptr;
  for (const Dialect& each : Dialects()) {
    const std::string& marker =
        each.calls.section_begin.empty() ? each.calls.call_begin : each.calls.section_begin;
    if (marker.empty() || tokenizer.Find(marker) == kNoToken || !format.Writes(marker)) continue;
    const std::string& end = each.calls.section_end;
    if (!end.empty() && tokenizer.Find(end) == kNoToken) continue;
    if (IsOwn(each, marker)) return &each;
  }
  return nullptr;
}

// Returns whether a template leaves thoughts out of earlier answers.
bool DropsThoughts(const ChatFormat& format, const ThoughtSyntax& thoughts) {
  ChatInput input;
  input.generation_prompt = GenerationPrompt::kOmit;
  const std::string answer =
      StrCat(thoughts.begin, "\n", kThought, "\n", thoughts.end, "\n\n", kAnswer);
  input.messages.push_back({{"role", "user"}, {"content", kQuestion}});
  input.messages.push_back({{"role", "assistant"}, {"content", answer}});
  input.messages.push_back({{"role", "user"}, {"content", kQuestion}});
  const auto written = format.Write(std::move(input));
  return written.ok() && written->text.find(kAnswer) != std::string::npos &&
         written->text.find(kThought) == std::string::npos;
}

// Finds the key under which a template reads the thoughts of a message with calls.
std::string ThoughtsKey(const ChatFormat& format, const HistoryForm& history) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning", "thought", "tool_plan"}) {
    Json message = CallMessage(1, history);
    message[key] = kThought;
    Json result = {{"role", "tool"},
                   {"tool_call_id", kIds[0]},
                   {"name", kCallNames[0]},
                   {"content", "result"}};
    const auto written = Render(format, {std::move(message), std::move(result)});
    if (written && written->find(kThought) != std::string::npos) return key;
  }
  return "reasoning_content";
}

Recognition Finish(const Dialect& found, HistoryForm history, const ChatFormat& format) {
  Recognition result{.dialect = found, .history = std::move(history)};
  const bool channels = found.calls.form == CallForm::kChannels;
  if (const ThoughtSyntax thoughts = ThoughtsOf(format); !channels && !thoughts.end.empty()) {
    result.dialect.thoughts = thoughts;
    result.reasons = true;
  }
  result.reasons = result.reasons || channels;
  if (result.dialect.thoughts.end == "[BEGIN FINAL RESPONSE]") {
    result.dialect.text_end = "[END FINAL RESPONSE]";
  }
  if (format.Writes("</response>") && result.dialect.text_begin.empty()) {
    result.dialect.text_begin = "<response>";
    result.dialect.text_end = "</response>";
  }
  if (result.reasons) result.history.thoughts_key = ThoughtsKey(format, result.history);
  return result;
}

// Finds the first dialect of `dialects` that reads what the template writes.
std::optional<Recognition> RoundTrip(const std::vector<Dialect>& dialects, const ChatFormat& format,
                                     const Tokenizer& tokenizer) {
  const Frame frame = FrameOf(format);
  for (const std::size_t count : {2U, 1U}) {
    for (const HistoryForm& form :
         {HistoryForm{}, HistoryForm{.text_arguments = true}, HistoryForm{.null_content = true},
          HistoryForm{.text_arguments = true, .null_content = true}}) {
      const auto written = Render(format, {CallMessage(count, form)});
      if (!written) continue;
      for (const Dialect& each : dialects) {
        if (each.has_calls() && Reads(each, *written, count, frame, tokenizer)) {
          return Finish(each, form, format);
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace

ThoughtSyntax ThoughtsOf(const ChatFormat& format) {
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", kQuestion}});
  const auto prompt = format.Write(std::move(input));
  for (const ThoughtSyntax& each : ThoughtSyntaxes()) {
    if (format.Writes(each.end) || (prompt.ok() && EndsInside(prompt->text, each)) ||
        DropsThoughts(format, each)) {
      return each;
    }
  }
  return {};
}

Recognition RecogniseDialect(const ChatFormat& format, const Tokenizer& tokenizer) {
  if (format.Mentions("tools")) {
    if (auto found = RoundTrip(Dialects(), format, tokenizer)) return *std::move(found);
    if (const Dialect* const found = FindByMarkers(format, tokenizer)) {
      return Finish(*found, {}, format);
    }
  }
  return Finish(*PlainDialect(), {}, format);
}

Result<Recognition> RecogniseAs(std::string_view name, const ChatFormat& format,
                                const Tokenizer& tokenizer) {
  const Dialect* const named = FindDialect(name);
  if (named == nullptr) {
    std::string names;
    for (const Dialect& each : Dialects()) names += StrCat(names.empty() ? "" : ", ", each.name);
    return InvalidArgument(StrCat("unknown dialect ", Quoted(name), "; known: ", names));
  }
  if (auto found = RoundTrip({*named}, format, tokenizer)) return *std::move(found);
  return Finish(*named, {}, format);
}

bool EndsInside(std::string_view prompt, const ThoughtSyntax& thoughts) {
  const std::size_t end = prompt.find_last_not_of(kWhiteSpace) + 1;
  return !thoughts.begin.empty() && prompt.substr(0, end).ends_with(thoughts.begin);
}

bool EndsBehind(std::string_view prompt, const ThoughtSyntax& thoughts) {
  const std::size_t end = prompt.find_last_not_of(kWhiteSpace) + 1;
  return !thoughts.end.empty() && prompt.substr(0, end).ends_with(thoughts.end);
}

void Adapt(const HistoryForm& history, Json& messages) {
  for (Json& message : messages) {
    if (!message.is_object() || message.value("role", Json()) != "assistant") continue;
    const auto thoughts = message.find("reasoning_content");
    if (thoughts != message.end() && history.thoughts_key != "reasoning_content" &&
        !message.contains(history.thoughts_key)) {
      message[history.thoughts_key] = Json(*thoughts);
      message.erase("reasoning_content");
    }
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array() || calls->empty()) continue;
    if (history.text_arguments) {
      for (Json& call : *calls) {
        if (!call.is_object() || !call.contains("function")) continue;
        Json& function = call["function"];
        if (!function.is_object() || !function.contains("arguments")) continue;
        Json& arguments = function["arguments"];
        if (!arguments.is_string()) arguments = arguments.dump();
      }
    }
    const Json content = message.value("content", Json());
    const bool empty = content.is_string() && content.get_ref<const std::string&>().empty();
    if (history.null_content && empty) message["content"] = nullptr;
  }
}

}  // namespace kvcache
