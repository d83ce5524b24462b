// kvcache serve: the server for the models of this machine.
#pragma once

#include "app/flags/serve_flags.h"
#include "kvcache/status.h"

namespace kvcache::app {

// Serves until a signal ends it (docs/server.md). Prints the server's address on standard error, and notes as they
// come. Errors: those of opening the models and the files of the flags, and of listening. REQUIRES: the process has
// one thread.
Status Serve(const ServeFlags& flags);

}  // namespace kvcache::app
