#include "dialect/answer_parser.h"

#include <algorithm>
#include <utility>

#include "dialect/scan.h"

namespace kvcache {
namespace {

SharedDialect TextOnly() {
  static const SharedDialect dialect = std::make_shared<const Dialect>();
  return dialect;
}

// The markers that InText looks for, by their places in the list.
enum TextMarker : std::size_t { kSection, kCall, kTextBegin, kTextEnd };

}  // namespace

AnswerParser::AnswerParser(AnswerSyntax syntax) {
  if (syntax.dialect == nullptr) syntax.dialect = TextOnly();
  syntax_ = std::make_shared<const AnswerSyntax>(std::move(syntax));
  held_ = syntax_->begun;
  if (calls().form == CallForm::kChannels) {
    state_ = State::kChannels;
    const auto place = syntax_->opens_reasoning ? ChannelReader::Place::kThoughts
                       : syntax_->reasoning     ? ChannelReader::Place::kHeader
                                                : ChannelReader::Place::kText;
    channels_ = std::make_shared<ChannelReader>(
        place, calls().call_begin.starts_with(std::string_view(&kEdge, 1)), has_calls());
  } else if (syntax_->opens_reasoning) {
    state_ = State::kReasoning;
  }
}

bool AnswerParser::thinking() const {
  return state_ == State::kChannels ? channels_->thinking() : state_ == State::kReasoning;
}

std::vector<AnswerPart> AnswerParser::Push(std::string_view piece) {
  held_ += piece;
  return Divide(false);
}

std::vector<AnswerPart> AnswerParser::Flush() {
  std::vector<AnswerPart> parts = Divide(true);
  if (called_ || trims_ || done_) return parts;
  Say(AnswerPart::Kind::kText, std::exchange(spaces_, {}));
  for (AnswerPart& part : std::exchange(parts_, {})) parts.push_back(std::move(part));
  return parts;
}

std::vector<AnswerPart> AnswerParser::Divide(bool last) {
  std::string_view text = held_;
  while (!done_ && Advance(text, last)) {
  }
  held_.erase(0, held_.size() - text.size());
  return std::exchange(parts_, {});
}

bool AnswerParser::Advance(std::string_view& text, bool last) {
  switch (state_) {
    case State::kStart: return AtStart(text, last);
    case State::kReasoning: return InReasoning(text, last);
    case State::kText: return InText(text, last);
    case State::kCalls: return InCalls(text, last);
    case State::kChannels: return InChannels(text, last);
  }
  return false;
}

void AnswerParser::Say(AnswerPart::Kind kind, std::string_view text) {
  std::string said;
  said.reserve(text.size());
  for (const char c : text) {
    if (c == kEdge) {
      edge_ = !edge_;
    } else if (!edge_) {
      said += c;
    }
  }
  if (!said.empty()) parts_.push_back({.kind = kind, .text = std::move(said)});
}

void AnswerParser::SayText(std::string_view text) {
  if (text.empty()) return;
  if (!std::exchange(trims_, false)) Say(AnswerPart::Kind::kText, spaces_);
  spaces_.clear();
  Say(AnswerPart::Kind::kText, text);
  fresh_ = called_ = false;
}

bool AnswerParser::AtStart(std::string_view& text, bool last) {
  state_ = State::kText;
  if (!syntax_->reasoning) return true;
  std::string_view rest = text;
  SkipSpaces(rest);
  const std::string& begin = syntax_->dialect->thoughts.begin;
  if (TakeMarker(rest, begin)) {
    text = rest;
    state_ = State::kReasoning;
  } else if (Begins(rest, begin) && !last) {
    state_ = State::kStart;
    return false;
  }
  return true;
}

bool AnswerParser::InReasoning(std::string_view& text, bool last) {
  const std::string& marker = syntax_->dialect->thoughts.end;
  const FoundMarker found = FindMarker(text, {marker});
  const bool ends = found.at != text.npos;
  // White space is said with what follows it.
  const std::string_view piece = text.substr(0, last && !ends ? text.npos : found.certain);
  const std::size_t text_end = piece.find_last_not_of(kWhiteSpace) + 1;
  if (text_end > 0) {
    const std::size_t begin = fresh_ ? piece.find_first_not_of(kWhiteSpace) : 0;
    Say(AnswerPart::Kind::kReasoning, piece.substr(begin, text_end - begin));
    fresh_ = false;
  }
  if (!ends) {
    text.remove_prefix(last ? text.size() : text_end);
    return false;
  }
  text.remove_prefix(found.at + marker.size());
  fresh_ = trims_ = true;
  state_ = State::kText;
  return true;
}

bool AnswerParser::InText(std::string_view& text, bool last) {
  const bool marks = has_calls() && !bare();
  const Dialect& dialect = *syntax_->dialect;
  const std::string_view begin = fresh_ && !wrapped_ ? dialect.text_begin : std::string_view();
  const std::string_view end = wrapped_ ? dialect.text_end : std::string_view();
  if (!marks && !(bare() && fresh_) && !trims_ && begin.empty() && end.empty()) {
    Say(AnswerPart::Kind::kText, std::exchange(spaces_, {}));
    Say(AnswerPart::Kind::kText, std::exchange(text, {}));
    return false;
  }
  // White space waits until it is known what follows it.
  const std::size_t spaces = std::min(text.find_first_not_of(kWhiteSpace), text.size());
  spaces_ += text.substr(0, spaces);
  text.remove_prefix(spaces);
  if (text.empty()) return false;
  if (bare() && fresh_ && (text[0] == '{' || text[0] == '[')) {
    BeginCalls("");
    return true;
  }
  const FoundMarker found = FindMarker(
      text, {marks ? std::string_view(calls().section_begin) : std::string_view(),
             marks ? std::string_view(calls().call_begin) : std::string_view(), begin, end});
  const bool marked = found.at != text.npos;
  const std::size_t certain = marked ? found.at : last ? text.size() : found.certain;
  const std::size_t text_end = text.substr(0, certain).find_last_not_of(kWhiteSpace) + 1;
  SayText(text.substr(0, text_end));
  spaces_ += text.substr(text_end, certain - text_end);
  text.remove_prefix(certain);
  // Text before text_begin is none of its kind.
  if (marked && found.index == kTextBegin && !fresh_) return true;
  return marked && AtMarker(text, found.index);
}

bool AnswerParser::AtMarker(std::string_view& text, std::size_t index) {
  const Dialect& dialect = *syntax_->dialect;
  if (index == kSection) {
    BeginCalls(calls().section_begin);
    text.remove_prefix(calls().section_begin.size());
  } else if (index == kCall) {
    BeginCalls("");
  } else {
    const bool begins = index == kTextBegin;
    text.remove_prefix(begins ? dialect.text_begin.size() : dialect.text_end.size());
    spaces_.clear();
    wrapped_ = begins;
    trims_ = true;
    fresh_ = fresh_ && begins;
  }
  return true;
}

void AnswerParser::BeginCalls(std::string_view marker) {
  if (reader_ == nullptr) {
    reader_ = std::make_shared<CallReader>(calls(), syntax_->tools, syntax_->one_call);
  }
  reader_->Begin(marker);
  state_ = State::kCalls;
}

bool AnswerParser::InCalls(std::string_view& text, bool last) {
  const std::size_t first = parts_.size();
  const auto outcome = reader_->Read(text, last, &parts_);
  NoteCalls(first);
  if (done_ || outcome == CallReader::Outcome::kMore) return false;
  state_ = State::kText;
  const std::string& raw = reader_->raw();
  if (outcome == CallReader::Outcome::kNoCall) {
    fresh_ = false;
    SayText(raw);
  } else if (Trimmed(raw).empty()) {
    spaces_ += raw;
  }
  return !text.empty();
}

bool AnswerParser::InChannels(std::string_view& text, bool last) {
  const std::size_t first = parts_.size();
  channels_->Read(text, last, &parts_);
  std::vector<AnswerPart> read(std::make_move_iterator(parts_.begin() + static_cast<long>(first)),
                               std::make_move_iterator(parts_.end()));
  parts_.resize(first);
  for (AnswerPart& part : read) {
    if (done_) return false;
    const bool words =
        part.kind == AnswerPart::Kind::kText || part.kind == AnswerPart::Kind::kReasoning;
    if (words) {
      Say(part.kind, part.text);
    } else {
      parts_.push_back(std::move(part));
      NoteCalls(parts_.size() - 1);
    }
  }
  return false;
}

void AnswerParser::NoteCalls(std::size_t first) {
  for (std::size_t i = first; i < parts_.size(); ++i) {
    if (parts_[i].kind == AnswerPart::Kind::kCallBegin) {
      spaces_.clear();
      called_ = true;
    }
    if (parts_[i].kind != AnswerPart::Kind::kCallEnd || !syntax_->one_call) continue;
    done_ = true;
    parts_.resize(i + 1);
    return;
  }
}

}  // namespace kvcache
