// kvcache serve: the server's program. Exit status 0: ended by a signal; 1: failed, and one line on
// stderr says why; 2: the command line is wrong.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "base/strings.h"
#include "cli/command_line.h"
#include "cli/engine_flags.h"
#include "cli/model_store.h"
#include "cli/store_flags.h"
#include "server/server.h"

namespace kvcache::serve {
namespace {

struct ServeFlags {
  cli::EngineFlags engine;
  cli::StoreFlags store;
  std::string host = "127.0.0.1";
  int port = 11500;
  int sequences = 16;
  int stop_seconds = 5;
};

void AddFlags(cli::FlagSet command, ServeFlags& flags) {
  flags.engine.Add(command);
  flags.store.Add(command);
  const char* const group = "Server";
  command
      .AddText("--host", &flags.host,
               "the IP address to listen on; others than loopback are open "
               "to everyone who reaches it")
      .Group(group)
      .ValueName("ADDRESS")
      .ShowDefault();
  command.AddNumber("--port", &flags.port, "the port; 0: any free one")
      .Range(0, 65535)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
  command
      .AddNumber("--sequences", &flags.sequences, "requests that are computed at once; others wait")
      .Range(1, 256)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
  command
      .AddNumber("--stop-seconds", &flags.stop_seconds,
                 "after SIGTERM or SIGINT, running requests may end for this long")
      .Range(0, 86400)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
}

// Each connection is a descriptor.
void AllowAllDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Ends the process at the second signal.
void EndAtNextSignal(const sigset_t& ends) {
  struct sigaction action {};
  action.sa_handler = [](int) { _exit(1); };
  (void)sigaction(SIGINT, &action, nullptr);
  (void)sigaction(SIGTERM, &action, nullptr);
  (void)pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
}

server::ServedModel Describe(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code error;
  const auto bytes = std::filesystem::file_size(file, error);
  return {.name = file.stem().string(),
          .created = server::UnixSeconds(),
          .bytes = error ? 0 : static_cast<std::int64_t>(bytes)};
}

Status Serve(const ServeFlags& flags, const sigset_t& ends) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, cli::FindModel(flags.engine.model()));
  KVCACHE_ASSIGN_OR_RETURN(const auto engine, flags.engine.OpenFor(0, flags.sequences));
  flags.store.Use(*engine);
  const server::ServerOptions options{
      .http = {.address = flags.host, .port = static_cast<std::uint16_t>(flags.port)}};
  KVCACHE_ASSIGN_OR_RETURN(auto server, server::Server::Start(*engine, Describe(path), options));
  const bool v6 = flags.host.find(':') != std::string::npos;
  (void)std::fprintf(stderr, "kvcache: serving %s at http://%s%s%s:%d\n",
                     Describe(path).name.c_str(), v6 ? "[" : "", flags.host.c_str(), v6 ? "]" : "",
                     server->port());
  int signal = 0;
  (void)sigwait(&ends, &signal);
  EndAtNextSignal(ends);
  (void)std::fprintf(stderr, "kvcache: stopping\n");
  server->Stop(std::chrono::seconds(flags.stop_seconds));
  server.reset();
  if (engine->prefix_store() != nullptr) {
    if (const std::string lost = engine->FlushStore(); !lost.empty()) {
      (void)std::fprintf(stderr, "kvcache: %s\n", OneLine(lost).c_str());
    }
  }
  return Status::Ok();
}

int Main(int argc, char** argv) {
  // Blocked before any thread starts, so that only sigwait takes them.
  sigset_t ends;
  (void)sigemptyset(&ends);
  (void)sigaddset(&ends, SIGINT);
  (void)sigaddset(&ends, SIGTERM);
  (void)pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  (void)std::signal(SIGPIPE, SIG_IGN);
  AllowAllDescriptors();
  cli::CommandLine line("kvcache", "Runs language models (GGUF files) on the CPU.",
                        "kvcache " KVCACHE_VERSION);
  ServeFlags flags;
  AddFlags(line.AddCommand("serve", "Serve a model to clients of OpenAI's and other APIs"), flags);
  std::vector<std::string> words = {"serve"};
  words.insert(words.end(), argv + 1, argv + argc);
  const cli::ParsedLine parsed = line.Parse(words);
  if (parsed.outcome == cli::ParseOutcome::kShown) return 0;
  if (parsed.outcome == cli::ParseOutcome::kWrong) {
    (void)std::fprintf(stderr, "kvcache serve: %s; see 'kvcache serve --help'\n",
                       OneLine(parsed.error).c_str());
    return 2;
  }
  const Status status = Serve(flags, ends);
  if (status.ok()) return 0;
  (void)std::fprintf(stderr, "kvcache serve: %s\n", OneLine(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvcache::serve

int main(int argc, char** argv) {
  try {
    return kvcache::serve::Main(argc, argv);
  } catch (const std::exception& error) {  // std::bad_alloc and the like, from libraries
    (void)std::fprintf(stderr, "kvcache serve: %s\n", kvcache::OneLine(error.what()).c_str());
    return 1;
  }
}
