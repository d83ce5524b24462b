// The subcommands of the program: each declares its flags, and runs after they are parsed.
//
// Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <string>

#include "app/flags/command_line.h"
#include "kvcache/status.h"

namespace kvcache::app {

struct Command {
  std::string name;
  // Is called after a parse that chose the command. An error is printed as one line, and the
  // program exits with 1.
  std::function<Status()> run;
};

// Each adds its command to `line`.
Command AddRun(CommandLine& line);
Command AddEval(CommandLine& line);
Command AddEmbed(CommandLine& line);
Command AddRerank(CommandLine& line);
Command AddTokenize(CommandLine& line);
Command AddInspect(CommandLine& line);
Command AddList(CommandLine& line);
Command AddCreate(CommandLine& line);
Command AddShow(CommandLine& line);
Command AddCopy(CommandLine& line);
Command AddRemove(CommandLine& line);
Command AddPull(CommandLine& line);
Command AddBench(CommandLine& line);
Command AddStore(CommandLine& line);
Command AddServe(CommandLine& line);

}  // namespace kvcache::app
