// kvcache: the command line. Exit status 0: done; 1: failed, and one line on stderr says what
// failed, where, and what to do; 2: the command line is wrong.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/flags/command_line.h"
#include "app/terminal/checked_output.h"
#include "app/terminal/notes.h"
#include "app/terminal/terminal.h"
#include "base/strings.h"
#include "platform/mapped_file_faults.h"

namespace kvcache::app {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// Prints what is wrong with `line`. `first`: the first argument, or empty.
int ReportUsage(const ParsedLine& line, const std::string& first) {
  if (line.command.empty() && !first.empty() && first[0] != '-') {
    std::fprintf(stderr, "kvcache: there is no command '%s'; see 'kvcache --help'\n",
                 OneLine(first).c_str());
    return kUsage;
  }
  const std::string command = line.command.empty() ? "kvcache" : "kvcache " + line.command;
  std::fprintf(stderr, "%s: %s; see '%s --help'\n", command.c_str(), OneLine(line.error).c_str(),
               command.c_str());
  return kUsage;
}

int RunChosen(const std::vector<Command>& commands, const std::string& name) {
  for (const Command& command : commands) {
    if (command.name != name) continue;
    ReportCutFiles();
    HoldNotes();
    const Status status = command.run();
    EndByTermination();
    if (status.ok()) {
      ShowNotes();
      return 0;
    }
    std::fprintf(stderr, "kvcache %s: %s\n", name.c_str(), OneLine(status.message()).c_str());
    return kFailed;
  }
  return 0;
}

// `kvcache` alone, and `kvcache help [COMMAND]` as `kvcache [COMMAND] --help`.
std::vector<std::string> ArgumentsOf(int argc, char** argv, const std::vector<Command>& commands) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const bool help = arguments.empty() || arguments[0] == "help";
  if (!help) return arguments;
  if (!arguments.empty()) arguments.erase(arguments.begin());
  const bool known = arguments.empty() ||
                     std::any_of(commands.begin(), commands.end(), [&](const Command& command) {
                       return command.name == arguments[0];
                     });
  if (known) arguments.emplace_back("--help");
  return arguments;
}

int Main(int argc, char** argv) {
  CommandLine command_line("kvcache", "Runs language models (GGUF files) on the CPU.",
                           "kvcache " KVCACHE_VERSION);
  const std::vector<Command> commands = {
      AddRun(command_line),     AddServe(command_line),  AddEval(command_line),
      AddEmbed(command_line),   AddRerank(command_line), AddTokenize(command_line),
      AddInspect(command_line), AddList(command_line),   AddCreate(command_line),
      AddShow(command_line),    AddCopy(command_line),   AddRemove(command_line),
      AddPull(command_line),    AddBench(command_line),  AddStore(command_line)};
  const std::vector<std::string> arguments = ArgumentsOf(argc, argv, commands);
  const ParsedLine line = command_line.Parse(arguments);
  switch (line.outcome) {
    case ParseOutcome::kRun: return RunChosen(commands, line.command);
    case ParseOutcome::kShown: return 0;
    case ParseOutcome::kWrong: return ReportUsage(line, arguments[0]);
  }
  return kFailed;
}

}  // namespace
}  // namespace kvcache::app

int main(int argc, char** argv) {
  // A pipe whose reader has gone is an error of the write that meets it: a chat goes on.
  (void)std::signal(SIGPIPE, SIG_IGN);
  try {
    return kvcache::app::CheckOutput("kvcache", kvcache::app::Main(argc, argv));
  } catch (const std::exception& error) {  // std::bad_alloc and the like, from libraries
    std::fprintf(stderr, "kvcache: %s\n", kvcache::OneLine(error.what()).c_str());
    return kvcache::app::kFailed;
  }
}
