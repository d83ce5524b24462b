// The conversation of a request to /v1/responses: what its previous response and its input say.
//
// Thread safety: free functions.
#pragma once

#include "server/route.h"

namespace kvcache::server {

struct ResponseConversation {
  Json items = Json::array();     // without the instructions
  Json messages = Json::array();  // likewise
};

// Reads "previous_response_id" and "input". Errors are answered; then there is nothing.
std::optional<ResponseConversation> ReadResponseConversation(const RouteContext& context,
                                                             Fields& fields, HttpReply& reply);

// Renders the conversation, with "instructions" in front. Errors are answered.
std::optional<Prompt> RenderResponse(const RouteContext& context, Fields& fields, ChatInput input,
                                     HttpReply& reply);

// Returns the usage of a response.
Json ResponseUsage(const TextResult& result);

}  // namespace kvcache::server
