// Changes a conversation to what a template reads (HistoryForm).
//
// Thread safety: free functions.
#pragma once

#include "chat_template/chat_template.h"
#include "dialect/dialect.h"

namespace kvcache {

// Changes what models said in earlier turns.
void Adapt(const HistoryForm& history, nlohmann::ordered_json& messages);

// Puts the tools of a conversation where the template reads them.
void OfferTools(const HistoryForm& history, ChatInput& input);

}  // namespace kvcache
