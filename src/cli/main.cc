// kvcache: the command line. Exit status 0: done; 1: failed, and one line on stderr says what
// failed, where, and what to do; 2: the command line is wrong.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "base/strings.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "platform/mapped_file_faults.h"

namespace kvcache::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// `first`: the first argument, or empty.
int ReportUsage(const CLI::App& app, const std::string& first, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  if (app.get_subcommands().empty() && !first.empty() && first[0] != '-') {
    std::fprintf(stderr, "kvcache: there is no command '%s'; see 'kvcache --help'\n",
                 OneLine(first).c_str());
    return kUsage;
  }
  std::string command = "kvcache";
  for (const CLI::App* sub : app.get_subcommands()) command += " " + sub->get_name();
  std::fprintf(stderr, "%s: %s; see '%s --help'\n", command.c_str(), OneLine(error.what()).c_str(),
               command.c_str());
  return kUsage;
}

int RunChosen(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    ReportCutFiles();
    const Status status = command.run();
    EndByTermination();
    if (status.ok()) return 0;
    std::fprintf(stderr, "kvcache %s: %s\n", command.app->get_name().c_str(),
                 OneLine(status.message()).c_str());
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
                       return command.app->get_name() == arguments[0];
                     });
  if (known) arguments.emplace_back("--help");
  return arguments;
}

int Main(int argc, char** argv) {
  CLI::App app("Runs language models (GGUF files) on the CPU.", "kvcache");
  app.set_version_flag("--version", "kvcache " KVCACHE_VERSION);
  app.require_subcommand(1);
  const std::vector<Command> commands = {AddRun(app), AddEval(app), AddTokenize(app),
                                         AddInspect(app), AddList(app)};
  const std::vector<std::string> arguments = ArgumentsOf(argc, argv, commands);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // as CLI11 wants
  } catch (const CLI::ParseError& error) {
    return ReportUsage(app, arguments[0], error);
  }
  return RunChosen(commands);
}

// A reader that has gone (`| head`) is no news: the process ends as SIGPIPE would have ended it.
void EndByClosedPipe() {
  (void)std::signal(SIGPIPE, SIG_DFL);
  (void)std::raise(SIGPIPE);
}

// What was printed may still be on its way, or may have been refused before: a script that sees
// 0 must have it all. Returns the exit status.
int CheckOutput(int status) {
  const bool flushed = std::fflush(stdout) == 0;
  const std::string reason = flushed ? "" : std::string(": ") + std::strerror(errno);
  if (!flushed && errno == EPIPE) EndByClosedPipe();
  if ((flushed && std::ferror(stdout) == 0) || status != 0) return status;
  std::fprintf(stderr, "kvcache: cannot write to standard output%s\n", reason.c_str());
  return kFailed;
}

}  // namespace
}  // namespace kvcache::cli

int main(int argc, char** argv) {
  // A pipe whose reader has gone is an error of the write that meets it: a chat goes on.
  (void)std::signal(SIGPIPE, SIG_IGN);
  try {
    return kvcache::cli::CheckOutput(kvcache::cli::Main(argc, argv));
  } catch (const std::exception& error) {  // std::bad_alloc and the like, from libraries
    std::fprintf(stderr, "kvcache: %s\n", kvcache::OneLine(error.what()).c_str());
    return kvcache::cli::kFailed;
  }
}
