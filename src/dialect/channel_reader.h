// Reads answers in channels, as gpt-oss writes them (harmony):
//
//   <|channel|>analysis<|message|>thoughts<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
//   <|start|>assistant<|channel|>final<|message|>text<|return|>
//
// Words of a channel with a recipient are the arguments of a call. The prompt ends behind <|start|>assistant.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/argument_reader.h"
#include "dialect/call_writer.h"

namespace kvcache {

class ChannelReader {
 public:
  // What the prompt ends inside of.
  enum class Place : std::uint8_t { kHeader, kThoughts, kText };

  // `edges`: markers are control tokens. `calls`: words with a recipient are calls; else they are text.
  ChannelReader(Place place, bool edges, bool calls);

  // Takes what it can from the front of `text`, and adds what it means to `parts`. What it leaves comes again, with
  // more behind it. `last`: nothing follows.
  void Read(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  bool thinking() const { return state_ == State::kWords && kind_ == AnswerPart::Kind::kReasoning; }

 private:
  enum class State : std::uint8_t { kBegin, kHeader, kWords, kArguments };

  bool Step(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  bool AtBegin(std::string_view& text, bool last);
  bool InHeader(std::string_view& text);
  bool InWords(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  bool InArguments(std::string_view& text, bool last, std::vector<AnswerPart>* parts);
  void TakeHeader(std::vector<AnswerPart>* parts);
  void EndCall(std::vector<AnswerPart>* parts);

  const std::string channel_, message_, start_, end_;
  const bool calls_;
  State state_ = State::kBegin;
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;
  bool said_ = false;    // the message has a word
  bool before_ = false;  // so has one before it, of the same kind
  std::string header_;
  CallWriter writer_;
  JsonArguments reader_;
};

}  // namespace kvcache
