// What the description of a stored model adds to requests that do not say it themselves.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/models/model_source.h"
#include "server/route.h"

namespace kvcache::server {

// Renders a conversation, which begins with what the model's description says.
Result<Prompt> RenderChat(const RouteContext& context, ChatInput input);
// The same with the field "messages" as the conversation. Errors: those of ReadMessages, too.
Result<Prompt> RenderMessages(const RouteContext& context, const Fields& fields, ChatInput input);
// Adds what the model's description says to a conversation without a system message.
void AddStoredMessages(const ServedModel& model, ChatInput& input);
// Returns the texts that end answers by the model's description.
std::vector<std::string> StoredStops(const ServedModel& model);
// Returns the tokens that answers have at most by the model's description; -1: it says nothing.
std::int32_t StoredMaxTokens(const ServedModel& model);

}  // namespace kvcache::server
