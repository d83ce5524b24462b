// How OpenAI's responses are written, whole and as events.
//
// Thread safety: AnswerShape; free functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/api/responses/store.h"
#include "server/output/answer_shape.h"

namespace kvcache::server::responses {

struct AnswerSetup {
  Json response{};                 // the response before its first item
  Json items{};                    // of the conversation so far
  bool seals_thoughts = false;     // into encrypted_content
  ResponseStore* store = nullptr;  // null: the response is not kept
  std::uint64_t owner = 0;         // the user's salt
};

std::shared_ptr<AnswerShape> MakeShape(AnswerSetup setup);

// Returns the events of a response that has ended, as its stream has or would have had them. Those up to the number
// `after` are left out. Errors: kInvalidArgument if no event has that number.
Result<std::string> EventsOf(const StoredResponse& stored, std::int64_t after);

}  // namespace kvcache::server::responses
