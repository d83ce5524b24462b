#include "dialect/recognise.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/answer_parser.h"
#include "dialect/call_text.h"
#include "dialect/probe.h"
#include "dialect/scan.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using probe::Frame;
using probe::kAnswer;
using probe::kQuestion;
using probe::kThought;

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
  for (const std::string_view name : probe::kNames) {
    syntax.tools.push_back({.name = std::string(name), .parameters = probe::Parameters()});
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
    const nlohmann::json wanted = probe::Arguments(i);
    if (calls[i].name != probe::kNames[i] || read != wanted) return false;
  }
  return true;
}

// Returns whether a dialect reads the calls of a message, and nothing else, from what the template wrote.
bool Reads(const Dialect& dialect, const std::string& written, std::size_t count,
           const Frame& frame, const Tokenizer& tokenizer) {
  std::string text = probe::Behind(written, kQuestion);
  const bool channels = dialect.calls.form == CallForm::kChannels;
  if (channels) {
    const std::size_t name = text.find(probe::kNames[0]);
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

// Returns whether a template that offers tools says that its model writes them in a dialect.
bool Names(const ChatFormat& format, const Dialect& dialect, const Tokenizer& tokenizer) {
  const CallSyntax& calls = dialect.calls;
  const std::string& marker = calls.section_begin.empty() ? calls.call_begin : calls.section_begin;
  const auto known = [&](const std::string& text) {
    return text.empty() || tokenizer.Find(text) != kNoToken;
  };
  if (marker.empty()) return false;
  if (!dialect.signs.empty()) {
    const bool bars = marker.starts_with("<|");
    return (!bars || known(marker)) &&
           std::all_of(dialect.signs.begin(), dialect.signs.end(),
                       [&](const std::string& sign) { return format.Writes(sign); });
  }
  return known(marker) && known(calls.section_end) && format.Writes(marker) &&
         IsOwn(dialect, marker);
}

// Finds the dialect of a template that offers tools but writes no calls.
const Dialect* FindByMarkers(const ChatFormat& format, const Tokenizer& tokenizer) {
  const auto found = std::find_if(Dialects().begin(), Dialects().end(), [&](const Dialect& each) {
    return Names(format, each, tokenizer);
  });
  return found == Dialects().end() ? nullptr : &*found;
}

// Returns how the calls of earlier turns come back to a template that is not known to write them: as the model wrote
// them, if the template writes the text of a message with calls, and not the calls.
CallSyntax TextCalls(const Dialect& dialect, const ChatFormat& format, ToolForm tools) {
  const HistoryForm history{.tools = tools};
  Json message = probe::CallMessage({probe::IdOf(0, "", false)}, history);
  message["content"] = kAnswer;
  const auto written = probe::Render(format, history, {std::move(message)});
  if (!written) return {};
  const std::string answer = probe::Behind(*written, kQuestion);
  const bool only_text = answer.find(kAnswer) != std::string::npos &&
                         answer.find(probe::kNames[0]) == std::string::npos;
  return only_text ? dialect.calls : CallSyntax();
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
  const auto written = format.Probe(std::move(input));
  return written.ok() && written->find(kAnswer) != std::string::npos &&
         written->find(kThought) == std::string::npos;
}

// Finds the key under which a template reads the thoughts of a message with calls.
std::string ThoughtsKey(const ChatFormat& format, const HistoryForm& history) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning", "thought", "tool_plan"}) {
    const std::string id = probe::IdOf(0, "", false);
    Json message = probe::CallMessage({id}, history);
    message[key] = kThought;
    Json result = {
        {"role", "tool"}, {"tool_call_id", id}, {"name", probe::kNames[0]}, {"content", "result"}};
    const auto written = probe::Render(format, history, {std::move(message), std::move(result)});
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

// Finds the first dialect of `dialects` that reads what the template writes for some calls.
const Dialect* FindReader(const std::vector<Dialect>& dialects, const ChatFormat& format,
                          const HistoryForm& history, std::size_t count,
                          const Tokenizer& tokenizer) {
  const Frame frame = probe::FrameOf(format, history);
  std::string_view prefix;
  for (const Dialect& each : dialects) {
    if (each.calls.numbered) prefix = each.calls.name_prefix;
  }
  for (const bool numbered : {false, true}) {
    std::vector<std::string> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(probe::IdOf(i, prefix, numbered));
    const auto written = probe::Render(format, history, {probe::CallMessage(ids, history)});
    if (!written) continue;
    for (const Dialect& each : dialects) {
      if (!each.has_calls() || (numbered && !each.calls.numbered)) continue;
      if (Reads(each, *written, count, frame, tokenizer)) return &each;
    }
  }
  return nullptr;
}

// Finds the dialect that reads what the template writes, and how the template wants messages for that.
std::optional<Recognition> RoundTrip(const std::vector<Dialect>& dialects, const ChatFormat& format,
                                     ToolForm tools, const Tokenizer& tokenizer) {
  for (const std::size_t count : {2U, 1U}) {
    for (const bool null : {false, true}) {
      for (const bool text : {false, true}) {
        HistoryForm form{.tools = tools, .text_arguments = text, .null_content = null};
        const Dialect* const found = FindReader(dialects, format, form, count, tokenizer);
        if (found == nullptr) continue;
        if (tools == ToolForm::kText) form.example = probe::ExampleOf(format, form);
        return Finish(*found, std::move(form), format);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

ThoughtSyntax ThoughtsOf(const ChatFormat& format) {
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", kQuestion}});
  const auto prompt = format.Probe(std::move(input));
  for (const ThoughtSyntax& each : ThoughtSyntaxes()) {
    const bool ends = prompt.ok() && (EndsInside(*prompt, each) || EndsBehind(*prompt, each));
    if (ends || format.Writes(each.end) || DropsThoughts(format, each)) {
      return each;
    }
  }
  return {};
}

Recognition RecogniseDialect(const ChatFormat& format, const Tokenizer& tokenizer) {
  const ToolForm tools = probe::FindToolForm(format);
  if (auto found = RoundTrip(Dialects(), format, tools, tokenizer)) return *std::move(found);
  const Dialect* const named =
      tools == ToolForm::kText ? nullptr : FindByMarkers(format, tokenizer);
  if (named == nullptr) return Finish(*PlainDialect(), {}, format);
  HistoryForm history{.tools = tools, .text_calls = TextCalls(*named, format, tools)};
  if (tools == ToolForm::kText) history.example = CallText(named->calls, probe::ExampleCalls());
  return Finish(*named, std::move(history), format);
}

Result<Recognition> RecogniseAs(std::string_view name, const ChatFormat& format,
                                const Tokenizer& tokenizer) {
  KVCACHE_RETURN_IF_ERROR(CheckDialect(std::string(name)));
  const Dialect* const named = FindDialect(name);
  const ToolForm tools = probe::FindToolForm(format);
  if (auto found = RoundTrip({*named}, format, tools, tokenizer)) return *std::move(found);
  return Finish(*named, {.tools = tools, .text_calls = TextCalls(*named, format, tools)}, format);
}

bool EndsBehind(std::string_view prompt, const ThoughtSyntax& thoughts) {
  const std::size_t end = prompt.find_last_not_of(kWhiteSpace) + 1;
  return !thoughts.end.empty() && prompt.substr(0, end).ends_with(thoughts.end);
}

}  // namespace kvcache
