// Conversations on disk (engine/conversation.h has the format). A file appears under its name when
// it is complete; a device or pipe is written to as it is.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "chat_template/chat_template.h"
#include "kvcache/status.h"

namespace kvcache::cli {

// Errors name the path.
Status SaveConversation(const std::string& path, const ChatInput& input);

// Replaces the messages, and tools and variables where the file has them; else `input` stays
// as it is. Errors name the path and what is wrong with it.
Status LoadConversation(const std::string& path, ChatInput& input);

}  // namespace kvcache::cli
