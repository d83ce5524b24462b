// Divides the text of an answer into what the model thought, what it said, and the tools that it called.
//
//   <think>thoughts</think>                                             reasoning
//   <tool_call>{"name": "f", "arguments": {…}}</tool_call>              a call, Hermes's and Qwen's way
//   {"name": "f", "parameters": {…}}, or an array of such objects       a call, Llama's and Mistral's way
//
// What looks like a call and is none is text. White space beside thoughts and calls belongs to neither.
// However the text is cut into pieces, the parts are the same.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/request/fields.h"

namespace kvcache::server {

// How a model's template writes calls of tools.
enum class CallSyntax : std::uint8_t { kNone, kTags, kJson };

struct AnswerSyntax {
  bool reasoning = false;        // thoughts may begin the answer
  bool opens_reasoning = false;  // the prompt ends inside of thoughts
  bool may_reason = false;       // the model is to think, and begins its thoughts itself
  CallSyntax calls = CallSyntax::kNone;
  // The tools of the request. JSON without tags that names another one is text.
  std::vector<std::string> tools{};
  bool one_call = false;  // the answer ends after a call
};

struct ToolCall {
  std::string name{};
  Json arguments = Json::object();
};

struct AnswerPart {
  enum class Kind : std::uint8_t { kText, kReasoning, kCall };
  Kind kind = Kind::kText;
  std::string text{};  // the next piece; not of calls
  ToolCall call{};
};

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
  bool thinking() const { return state_ == State::kReasoning; }

 private:
  enum class State : std::uint8_t { kStart, kReasoning, kText, kCall, kJson };

  // Goes one state on. Returns whether there may be more to do.
  bool Advance(bool last);
  bool AtStart(bool last);
  bool InReasoning(bool last);
  bool InText(bool last);
  bool InCall(bool last);
  bool InJson(bool last);
  void Say(AnswerPart::Kind kind, std::string_view text);
  void Call(ToolCall call);
  // Takes `size` bytes of what is held as these calls, or as text if there are none.
  void Take(std::vector<ToolCall> calls, std::size_t size);

  AnswerSyntax syntax_;
  State state_ = State::kStart;
  bool fresh_ = true;    // nothing was said in this state, so JSON may be a call
  bool trims_ = false;   // the next text begins without white space
  bool called_ = false;  // the last part is a call
  bool done_ = false;
  std::string held_;    // not divided yet
  std::string spaces_;  // before the next text
  std::vector<AnswerPart> parts_;
};

}  // namespace kvcache::server
