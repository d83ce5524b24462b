#include "dialect/answer_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/chat/json_text.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThought = "</think>";
constexpr std::string_view kSpaces = " \t\r\n";

std::string_view WithoutSpaces(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// Returns the length of the longest end of `text` that begins `tag`.
std::size_t Overlap(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (tag.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

// Returns where the object or array that `text` begins with ends; npos: not in this text.
std::size_t EndOfJson(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// Returns the call that an object describes, if it does.
std::optional<ToolCall> AsCall(const Json& json) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return {};
  ToolCall call{.name = json["name"].get<std::string>()};
  for (const char* key : {"arguments", "parameters"}) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    if (!found->is_object()) return {};
    call.arguments = *found;
    return call;
  }
  return {};
}

// Returns the calls of an object, or of an array of objects; none if one of them is no call.
std::vector<ToolCall> ReadCalls(std::string_view text) {
  const auto parsed = ParseJson(WithoutSpaces(text));
  if (!parsed.ok()) return {};
  const Json list = parsed->is_array() ? *parsed : Json::array({*parsed});
  std::vector<ToolCall> calls;
  for (const Json& item : list) {
    auto call = AsCall(item);
    if (!call) return {};
    calls.push_back(std::move(*call));
  }
  return calls;
}

}  // namespace

AnswerParser::AnswerParser(AnswerSyntax syntax) : syntax_(std::move(syntax)) {
  if (syntax_.opens_reasoning) state_ = State::kReasoning;
}

std::vector<AnswerPart> AnswerParser::Push(std::string_view piece) {
  held_ += piece;
  while (!done_ && Advance(false)) {
  }
  return std::exchange(parts_, {});
}

std::vector<AnswerPart> AnswerParser::Flush() {
  while (!done_ && Advance(true)) {
  }
  if (!called_ && !trims_ && !done_) Say(AnswerPart::Kind::kText, std::exchange(spaces_, {}));
  return std::exchange(parts_, {});
}

bool AnswerParser::Advance(bool last) {
  switch (state_) {
    case State::kStart: return AtStart(last);
    case State::kReasoning: return InReasoning(last);
    case State::kText: return InText(last);
    case State::kCall: return InCall(last);
    case State::kJson: return InJson(last);
  }
  return false;
}

void AnswerParser::Say(AnswerPart::Kind kind, std::string_view text) {
  if (!text.empty()) parts_.push_back({.kind = kind, .text = std::string(text)});
}

void AnswerParser::Call(ToolCall call) {
  spaces_.clear();
  called_ = true;
  parts_.push_back({.kind = AnswerPart::Kind::kCallBegin, .call = {.name = call.name}});
  parts_.push_back({.kind = AnswerPart::Kind::kCallArguments, .text = call.arguments.dump()});
  parts_.push_back({.kind = AnswerPart::Kind::kCallEnd, .call = std::move(call)});
  done_ = syntax_.one_call;
}

bool AnswerParser::AtStart(bool last) {
  if (!syntax_.reasoning) {
    state_ = State::kText;
    return true;
  }
  const std::size_t begin = held_.find_first_not_of(kSpaces);
  if (begin == std::string::npos && !last) return false;
  const std::string_view rest = WithoutSpaces(held_);
  if (rest.starts_with(kThink)) {
    held_.erase(0, begin + kThink.size());
    state_ = State::kReasoning;
    return true;
  }
  if (!last && kThink.starts_with(rest)) return false;
  state_ = State::kText;
  return true;
}

bool AnswerParser::InReasoning(bool last) {
  const std::size_t end = held_.find(kThought);
  std::size_t certain = end;
  if (end == std::string::npos) certain = held_.size() - (last ? 0 : Overlap(held_, kThought));
  // White space is said with what follows it.
  const std::string_view piece = std::string_view(held_).substr(0, certain);
  const std::size_t text_end = piece.find_last_not_of(kSpaces) + 1;
  if (text_end > 0) {
    const std::size_t begin = fresh_ ? piece.find_first_not_of(kSpaces) : 0;
    Say(AnswerPart::Kind::kReasoning, piece.substr(begin, text_end - begin));
    fresh_ = false;
  }
  held_.erase(0, end == std::string::npos ? text_end : end + kThought.size());
  if (end == std::string::npos) {
    if (last) held_.clear();
    return false;
  }
  fresh_ = trims_ = true;
  state_ = State::kText;
  return true;
}

bool AnswerParser::InText(bool last) {
  const bool may_call = has_calls() && (!bare() || fresh_);
  if (!may_call && !trims_) {
    Say(AnswerPart::Kind::kText, std::exchange(spaces_, {}) + std::exchange(held_, {}));
    return false;
  }
  // White space waits until it is known what follows it.
  const std::size_t begin = std::min(held_.find_first_not_of(kSpaces), held_.size());
  spaces_ += held_.substr(0, begin);
  held_.erase(0, begin);
  if (held_.empty()) return false;
  const bool json = held_[0] == '{' || held_[0] == '[';
  if (bare() && fresh_ && json) {
    state_ = State::kJson;
    return true;
  }
  std::size_t end = held_.size();
  bool call = false;
  if (has_calls() && !bare()) {
    const std::string& kCall = calls().section_begin;
    const std::size_t found = held_.find(kCall);
    call = found != std::string::npos;
    end = call ? found : held_.size() - (last ? 0 : Overlap(held_, kCall));
  }
  const std::size_t text_end = std::string_view(held_).substr(0, end).find_last_not_of(kSpaces) + 1;
  if (text_end > 0) {
    if (!std::exchange(trims_, false)) Say(AnswerPart::Kind::kText, spaces_);
    spaces_.clear();
    Say(AnswerPart::Kind::kText, std::string_view(held_).substr(0, text_end));
    fresh_ = called_ = false;
  }
  spaces_ += held_.substr(text_end, end - text_end);
  held_.erase(0, end);
  if (call) state_ = State::kCall;
  return call;
}

// Between the tags is a call or an array of calls. Without an end tag, the end of the answer is the end.
bool AnswerParser::InCall(bool last) {
  const std::string& kCall = calls().section_begin;
  const std::string& kCalled = calls().section_end;
  const std::size_t end = held_.find(kCalled);
  if (end == std::string::npos && !last) return false;
  const std::size_t size = std::min(end, held_.size());
  auto calls = ReadCalls(std::string_view(held_).substr(kCall.size(), size - kCall.size()));
  const std::size_t whole =
      std::min(held_.size(), end == std::string::npos ? end : end + kCalled.size());
  Take(std::move(calls), whole);
  return true;
}

bool AnswerParser::InJson(bool last) {
  const std::size_t end = EndOfJson(held_);
  if (end == std::string::npos && !last) return false;
  auto calls = ReadCalls(std::string_view(held_).substr(0, end));
  const bool known = std::all_of(calls.begin(), calls.end(), [this](const ToolCall& call) {
    return std::any_of(syntax_.tools.begin(), syntax_.tools.end(),
                       [&](const OfferedTool& tool) { return tool.name == call.name; });
  });
  if (!known) calls.clear();
  Take(std::move(calls), std::min(end, held_.size()));
  return true;
}

void AnswerParser::Take(std::vector<ToolCall> calls, std::size_t size) {
  if (calls.empty()) {
    if (!std::exchange(trims_, false)) Say(AnswerPart::Kind::kText, spaces_);
    spaces_.clear();
    Say(AnswerPart::Kind::kText, std::string_view(held_).substr(0, size));
    fresh_ = called_ = false;
  }
  for (ToolCall& call : calls) {
    if (!done_) Call(std::move(call));
  }
  held_.erase(0, size);
  state_ = State::kText;
}

}  // namespace kvcache
