// Reads and writes the JSON of a conversation (kvcache_engine/conversation.h has the format), for
// sources that use ChatInput.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "chat_template/chat_template.h"
#include "kvcache/status.h"

namespace kvcache {

// As Conversation::ToJson and Conversation::ReadJson.
std::string ConversationText(const ChatInput& input);
Status ReadConversation(std::string_view text, ChatInput& input);

// Returns the array of tools; a single object becomes an array of one. Errors as in
// ReadConversation.
Result<nlohmann::ordered_json> ReadTools(std::string_view text);

}  // namespace kvcache
