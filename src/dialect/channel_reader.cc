#include "dialect/channel_reader.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kRecipient = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kRole = "assistant";

std::string Marker(const char* text, bool edges) {
  return edges ? StrCat(std::string_view(&kEdge, 1), text, std::string_view(&kEdge, 1)) : text;
}

// Returns the word behind `key` in a header.
std::string_view WordAfter(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(key);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(" \n\t<\xff"));
}

}  // namespace

ChannelReader::ChannelReader(Place place, bool edges, bool calls)
    : channel_(Marker("<|channel|>", edges)),
      message_(Marker("<|message|>", edges)),
      start_(Marker("<|start|>", edges)),
      end_(Marker("<|end|>", edges)),
      calls_(calls) {
  if (place == Place::kHeader) return;
  state_ = State::kWords;
  if (place == Place::kThoughts) kind_ = AnswerPart::Kind::kReasoning;
}

void ChannelReader::Read(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  while (Step(text, last, parts)) {
  }
  if (!last) return;
  if (writer_.reported()) EndCall(parts);
  text = {};
}

bool ChannelReader::Step(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  if (text.empty()) return false;
  switch (state_) {
    case State::kBegin: return AtBegin(text, last);
    case State::kHeader: {
      if (!InHeader(text)) return false;
      TakeHeader(parts);
      return true;
    }
    case State::kWords: return InWords(text, last, parts);
    case State::kArguments: return InArguments(text, last, parts);
  }
  return false;
}

// A model that writes no header writes a text.
bool ChannelReader::AtBegin(std::string_view& text, bool last) {
  std::string_view rest = text;
  SkipSpaces(rest);
  if (rest.empty() && !last) return false;
  for (const std::string_view header : {std::string_view(channel_), std::string_view(start_),
                                        std::string_view(message_), kRecipient}) {
    if (Begins(rest, header) && !last) return false;
    if (!rest.starts_with(header)) continue;
    state_ = State::kHeader;
    return true;
  }
  state_ = State::kWords;
  return true;
}

bool ChannelReader::InHeader(std::string_view& text) {
  const FoundMarker found = FindMarker(text, {message_});
  header_ += text.substr(0, found.certain);
  text.remove_prefix(found.certain);
  return TakeMarker(text, message_);
}

void ChannelReader::TakeHeader(std::vector<AnswerPart>* parts) {
  const std::string header = std::exchange(header_, {});
  std::string_view recipient = WordAfter(header, kRecipient);
  const std::string_view channel = WordAfter(header, channel_);
  const bool tool = recipient != "user" && recipient != "all" && recipient != kRole;
  (void)TakeMarker(recipient, kFunctions);
  if (calls_ && tool && !recipient.empty()) {
    writer_.call().name = recipient;
    writer_.Report(parts);
    reader_ = {};
    state_ = State::kArguments;
    before_ = false;
    return;
  }
  const auto kind = channel == "analysis" ? AnswerPart::Kind::kReasoning : AnswerPart::Kind::kText;
  before_ = kind == kind_ && (said_ || before_);
  said_ = false;
  kind_ = kind;
  state_ = State::kWords;
}

bool ChannelReader::InWords(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  const FoundMarker found = FindMarker(text, {end_, start_, channel_});
  const bool ends = found.at != text.npos;
  const std::size_t size = ends ? found.at : last ? text.size() : found.certain;
  if (size > 0) {
    const char* const between = !said_ && before_ ? "\n\n" : "";
    parts->push_back({.kind = kind_, .text = StrCat(between, text.substr(0, size))});
    said_ = true;
  }
  text.remove_prefix(size);
  if (!ends) return false;
  (void)TakeMarker(text, end_);
  state_ = State::kHeader;
  return true;
}

bool ChannelReader::InArguments(std::string_view& text, bool last, std::vector<AnswerPart>* parts) {
  std::string out;
  const bool ended = reader_.Read(text, last, &out);
  writer_.Give(out, parts);
  if (!ended) return false;
  EndCall(parts);
  state_ = State::kHeader;
  return true;
}

void ChannelReader::EndCall(std::vector<AnswerPart>* parts) {
  writer_.End(reader_.Closing(), parts);
  said_ = before_ = false;
}

}  // namespace kvcache
