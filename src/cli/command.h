// The subcommands of the program: each declares its flags, and runs after they are parsed.
//
// Thread safety: one thread at a time.
#pragma once

#include <functional>

#include "kvcache/status.h"

namespace CLI {
class App;
}

namespace kvcache::cli {

struct Command {
  CLI::App* app = nullptr;
  // Is called after a successful parse. An error is printed as one line, and the program exits
  // with 1.
  std::function<Status()> run;
};

// Each adds its subcommand to `app`.
Command AddRun(CLI::App& app);
Command AddEval(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddInspect(CLI::App& app);
Command AddList(CLI::App& app);

}  // namespace kvcache::cli
