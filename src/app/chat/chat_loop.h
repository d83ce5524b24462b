// The chat: reads messages and commands, prints answers.
#pragma once

#include "app/flags/run_flags.h"

namespace kvcache::app {

// Until the end of input, /quit or two Ctrl-C. On a terminal errors are shown and the chat goes
// on; from a pipe the first one ends it and is returned.
Status RunChat(Engine& engine, const RunFlags& flags, double load_ms);

}  // namespace kvcache::app
