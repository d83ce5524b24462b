// An answer, and the shape that an API gives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "dialect/answer_part.h"
#include "server/api/errors.h"
#include "server/models/text_service.h"
#include "server/output/stamps.h"

namespace kvcache::server {

// A call of a whole answer.
struct AnsweredCall {
  ToolCall call{};
  std::string written{};  // the arguments as JSON, as far as the model wrote them
};

// A whole answer.
struct Answer {
  std::string text{};
  std::string reasoning{};
  std::vector<AnsweredCall> calls{};
};

// Returns the id of a call: the model's own, or a new one.
inline std::string CallId(const ToolCall& call, std::string_view prefix) {
  const std::string own = call.OwnId();
  return own.empty() ? NewId(prefix) : own;
}

// Returns an event of a stream.
inline std::string Event(const Json& data) {
  return StrCat("data: ", Dump(data), "\n\n");
}
// Returns one that is named by the "type" of its data.
inline std::string TypedEvent(const Json& data) {
  return StrCat("event: ", data["type"].get_ref<const std::string&>(), "\n", Event(data));
}

// The shape of an answer in one API. One thread at a time, the engine's.
class AnswerShape {
 public:
  virtual ~AnswerShape() = default;
  virtual std::string_view stream_type() const { return "text/event-stream; charset=utf-8"; }
  // Returns a stream's first bytes. `reuse` is known before the first text.
  virtual std::string Start(const ReuseReport& /*reuse*/) { return {}; }
  // Takes a token of the parts that come next; the second one only if log probabilities are wanted.
  virtual void TakeToken(std::int32_t /*token*/) {}
  virtual void Take(TokenLogprob /*token*/) {}
  virtual std::string Delta(const AnswerPart& part) = 0;
  virtual std::string End(const TextResult& result) = 0;
  // Returns a stream's last bytes, after the ends of all choices. `total` has the tokens of all, those of each
  // prompt once.
  virtual std::string Last(const TextResult& /*total*/) { return {}; }
  virtual Json Whole(const Answer& answer, const TextResult& result) = 0;
  // Returns the last bytes of a stream that fails; none: those of the API.
  virtual std::string Failure(const ApiError& /*error*/) { return {}; }
  // Returns the field of the request that the prompt is from, in OpenAI's API.
  virtual const char* prompt_field() const { return "messages"; }
  // Adds the choice of another whole answer.
  virtual void AddChoice(Json& /*whole*/, const Json& /*other*/) const {}
  // Sets the usage of a whole answer to that of all choices.
  virtual void SetTotal(Json& /*whole*/, const TextResult& /*total*/) const {}
};

}  // namespace kvcache::server
