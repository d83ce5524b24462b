// A subcommand of the program: it declares its flags, and runs once they are parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "kvcache/status.h"

namespace kvcache::cli {

// Adds the subcommand to `app`. What it returns is run after a successful parse; an error that
// comes back is printed as one line, and the program exits with 1.
struct Command {
  CLI::App* app = nullptr;
  std::function<Status()> run;
};

Command AddRun(CLI::App& app);
Command AddEval(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddInspect(CLI::App& app);
Command AddList(CLI::App& app);

}  // namespace kvcache::cli
