// Runs the commands of a chat: /help, /clear, …
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/chat/chat_branches.h"
#include "app/chat/chat_tools.h"
#include "app/flags/run_flags.h"
#include "kvcache_engine/chat.h"

namespace kvcache::app {

enum class AfterCommand : std::uint8_t {
  kReadOn,
  kRetry,   // replace the last answer
  kAnswer,  // answer the last message
  kQuit,
};

// Returns whether a message is a command: it begins with one slash.
bool IsCommand(std::string_view text);

// Returns the number of messages without the last answer.
std::size_t AnsweredMessages(const Conversation& conversation);

// What commands show and change.
struct ChatState {
  Engine& engine;
  Chat& chat;
  ChatBranches& branches;
  const ChatTools& tools;
  RunFlags& flags;
  std::vector<PicturePtr>& pictures;  // of the next message
};

// Runs the command `text`. Its output, one line or several, goes into `say`. Errors: no such
// command, or what is wrong with its argument.
Result<AfterCommand> RunCommand(std::string_view text, const ChatState& state, std::string& say);

}  // namespace kvcache::app
