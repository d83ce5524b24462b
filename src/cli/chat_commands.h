// What a chat can be told besides messages: /help, /clear, …
#pragma once

#include <string>
#include <string_view>

#include "cli/run_flags.h"
#include "engine/chat.h"

namespace kvcache::cli {

enum class AfterCommand : std::uint8_t {
  kReadOn,
  kAnswer,  // answer the conversation as it is now
  kQuit,
};

// Whether a message is a command: it begins with one slash.
bool IsCommand(std::string_view text);

// Runs `text`; what it has to say goes into `say`, a line or several. Errors: no such command,
// or what was wrong with it.
Result<AfterCommand> RunCommand(std::string_view text, Chat& chat, RunFlags& flags,
                                std::string& say);

}  // namespace kvcache::cli
