// Saves and loads conversations (kvcache_engine/conversation.h has the format). A file appears
// under its name when it is complete; a device or pipe is written to.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "kvcache/status.h"
#include "kvcache_engine/conversation.h"

namespace kvcache::app {

// Errors name the path.
Status SaveConversation(const std::string& path, const Conversation& conversation);

// Replaces the messages, and the tools and variables if the file has them. Errors name the path and
// what is wrong with it; the conversation is unchanged then.
Status LoadConversation(const std::string& path, Conversation& conversation);

}  // namespace kvcache::app
