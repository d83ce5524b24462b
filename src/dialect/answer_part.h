// What an answer consists of, and what is known of it before it comes.
//
// Thread safety: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
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
  std::string begun{};           // how the answer begins; the prompt ends with it
  // The tools of the request. Calls without markers that name another one are text.
  std::vector<OfferedTool> tools{};
  bool one_call = false;  // the answer ends after a call
};

struct ToolCall {
  std::string name{};
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
  std::string id{};      // that the model wrote; empty: none
  bool complete = true;  // false: the model broke the arguments off, or wrote no object

  // Returns the id if it tells the calls of a conversation apart, else nothing. Short ones are numbers that each answer
  // begins anew.
  std::string OwnId() const {
    constexpr std::size_t kShort = 8;
    return id.size() > kShort ? id : std::string();
  }
};

struct AnswerPart {
  // A call is one kCallBegin, any number of kCallArguments, and one kCallEnd. No other part stands between them.
  enum class Kind : std::uint8_t { kText, kReasoning, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kText;
  // The next piece of the text, of the thoughts, or of the arguments as JSON; not empty. The pieces of a call that the
  // model completes are an object, put together.
  std::string text{};
  // kCallBegin: the name, and the id if the model writes one before the arguments. kCallEnd: the whole call; arguments
  // that the model did not complete are closed, and {} if they are no object (`complete` is false).
  ToolCall call{};
};

}  // namespace kvcache
