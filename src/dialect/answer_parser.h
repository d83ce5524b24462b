// Divides the text of an answer into what the model thought, what it said, and the tools that it called.
//
// The dialect says how thoughts and calls are written. What looks like a call and is none is text. White space beside
// thoughts and calls belongs to neither. However the text is cut into pieces, the parts, put together, are the same.
//
// The text has control tokens only between edges (dialect.h). Those that are no marker where they stand are dropped.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/answer_part.h"
#include "dialect/call_reader.h"
#include "dialect/channel_reader.h"

namespace kvcache {

class AnswerParser {
 public:
  explicit AnswerParser(AnswerSyntax syntax);

  // Takes the next piece, and returns what is certain.
  std::vector<AnswerPart> Push(std::string_view piece);
  // Returns what was held back, at the end.
  std::vector<AnswerPart> Flush();
  // Returns whether nothing more is wanted (AnswerSyntax::one_call).
  bool done() const { return done_; }
  // Returns whether the next piece is a thought, as far as is known.
  bool thinking() const;

 private:
  enum class State : std::uint8_t { kStart, kReasoning, kText, kCalls, kChannels };

  std::vector<AnswerPart> Divide(bool last);
  // Goes one state on. Returns whether there may be more to do.
  bool Advance(std::string_view& text, bool last);
  bool AtStart(std::string_view& text, bool last);
  bool InReasoning(std::string_view& text, bool last);
  bool InText(std::string_view& text, bool last);
  bool AtMarker(std::string_view& text, std::size_t index);
  bool InCalls(std::string_view& text, bool last);
  bool InChannels(std::string_view& text, bool last);
  void BeginCalls(std::string_view marker);
  // Adds text, after the white space that waits.
  void SayText(std::string_view text);
  void Say(AnswerPart::Kind kind, std::string_view text);
  // Counts the calls among the parts from `first` on.
  void NoteCalls(std::size_t first);
  const CallSyntax& calls() const { return syntax_->dialect->calls; }
  bool has_calls() const { return syntax_->calls && calls().form != CallForm::kNone; }
  bool bare() const { return has_calls() && calls().bare(); }

  std::shared_ptr<const AnswerSyntax> syntax_;  // the readers refer to it
  State state_ = State::kStart;
  bool fresh_ = true;     // nothing was said in this state, so it may begin with calls
  bool trims_ = false;    // the next text begins without white space
  bool called_ = false;   // the last part is a call
  bool wrapped_ = false;  // text_begin has come
  bool edge_ = false;     // a control token has begun that is dropped
  bool done_ = false;
  std::string held_;    // not divided yet
  std::string spaces_;  // before the next text
  std::shared_ptr<CallReader> reader_;
  std::shared_ptr<ChannelReader> channels_;
  std::vector<AnswerPart> parts_;
};

}  // namespace kvcache
