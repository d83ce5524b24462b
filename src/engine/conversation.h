// Conversations as text:
//
//   {"version": 1,
//    "messages": [
//     {"role": "user", "content": "…"},
//     …],
//    "tools": […] or null,
//    "variables": {…}}
//
// A text that is just the array of messages is read, too.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "chat_template/chat_template.h"
#include "kvcache/status.h"

namespace kvcache {

// The conversation's text, a line for each message: its size follows the messages' size, however
// they are nested. Bytes that are not UTF-8 become U+FFFD.
std::string ConversationText(const ChatInput& input);

// Replaces the messages of `input`, and its tools and variables where the text has them. Errors say
// what is wrong and where; `input` stays as it is then.
Status ReadConversation(std::string_view text, ChatInput& input);

// Tools are an array of objects, or null for none; a single object stands for an array of one.
// Errors as above.
Result<nlohmann::ordered_json> ReadTools(std::string_view text);

}  // namespace kvcache
