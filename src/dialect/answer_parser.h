// Divides the text of an answer into what the model thought, what it said, and the tools that it called.
//
// The dialect says how thoughts and calls are written. What looks like a call and is none is text. White space beside
// thoughts and calls belongs to neither. However the text is cut into pieces, the parts, put together, are the same.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/dialect.h"

namespace kvcache {

struct OfferedTool {
  std::string name{};
  nlohmann::ordered_json parameters{};  // their schema; null: none
};

// What is known of an answer before it comes.
struct AnswerSyntax {
  SharedDialect dialect{};       // null: nothing but text
  bool reasoning = false;        // thoughts may begin the answer
  bool opens_reasoning = false;  // the prompt ends inside of thoughts
  bool may_reason = false;       // the model is to think, and begins its thoughts itself
  bool calls = false;            // tools are offered
  // The tools of the request. Calls without markers that name another one are text.
  std::vector<OfferedTool> tools{};
  bool one_call = false;  // the answer ends after a call
};

struct ToolCall {
  std::string name{};
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
  std::string id{};  // that the model wrote; empty: none
};

struct AnswerPart {
  // A call is one kCallBegin, any number of kCallArguments, and one kCallEnd. No other part stands between them.
  enum class Kind : std::uint8_t { kText, kReasoning, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kText;
  // The next piece of the text, of the thoughts, or of the arguments as JSON; not empty. The pieces of a call that the
  // model completes are an object, put together.
  std::string text{};
  // kCallBegin: the name, and the id if the model writes one before the arguments. kCallEnd: the whole call; arguments
  // that the model did not complete are closed, and {} if they are no object.
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
  const CallSyntax& calls() const { return syntax_.dialect->calls; }
  bool has_calls() const { return syntax_.calls && syntax_.dialect != nullptr; }
  bool bare() const { return has_calls() && calls().bare(); }

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

}  // namespace kvcache
