// The conversation of a request to /v1/responses: what its previous response and its input say.
//
// Thread safety: free functions.
#pragma once

#include "server/route.h"

namespace kvcache::server::responses {

struct Conversation {
  Json items = Json::array();     // without the instructions
  Json messages = Json::array();  // likewise
};

// Reads "previous_response_id" and "input". Errors are answered; then there is nothing.
std::optional<Conversation> ReadConversation(const RouteContext& context, Fields& fields);

// Renders the conversation, with "instructions" in front. Errors are answered.
std::optional<Prompt> Render(const RouteContext& context, Fields& fields, ChatInput input);

// Returns the usage of a response.
Json Usage(const TextResult& result);

}  // namespace kvcache::server::responses
