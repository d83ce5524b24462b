#include "app/terminal/terminal.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "app/terminal/paste_mode.h"
#include "base/errors.h"
#include "base/parse_number.h"

namespace kvcache::app {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<int> termination{0};                      // the signal that asked the program to end
std::array<std::atomic<pid_t>, 64> groups_to_kill{};  // at the second signal; 0: none

extern "C" void EndWithGroups(int signal) {
  for (const std::atomic<pid_t>& group : groups_to_kill) {
    if (const pid_t id = group.load(); id > 0) (void)kill(-id, SIGKILL);
  }
  EndBySignal(signal);
}

extern "C" void OnSignal(int signal) {
  if (signal != SIGINT) termination.store(signal);
  interrupted.store(true);
  (void)std::signal(signal, EndWithGroups);  // the second one
}

// Without SA_RESTART: a wait for a pipe's reader ends, too.
void Catch(int signal) {
  struct sigaction before {};
  (void)sigaction(signal, nullptr, &before);
  if (signal != SIGINT && before.sa_handler == SIG_IGN) return;  // nohup
  struct sigaction action {};
  action.sa_handler = &OnSignal;
  (void)sigemptyset(&action.sa_mask);
  (void)sigaction(signal, &action, nullptr);
}

struct FileCloser {
  void operator()(std::FILE* file) const {
    if (file != stdin) (void)std::fclose(file);
  }
};

}  // namespace

bool StdinIsTerminal() {
  return isatty(STDIN_FILENO) != 0;
}
bool StdoutIsTerminal() {
  return isatty(STDOUT_FILENO) != 0;
}
bool StderrIsTerminal() {
  return isatty(STDERR_FILENO) != 0;
}

std::string Dimmed(std::string_view text) {
  const char* const none = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
  const bool dims = StderrIsTerminal() && (none == nullptr || *none == '\0');
  // A program that is killed must not leave the terminal dimmed, so each text ends what it begins.
  return dims && !text.empty() ? StrCat("\033[2m", text, "\033[22m") : std::string(text);
}

void Progress::Show(const std::string& line) {
  if (!StderrIsTerminal()) return;
  (void)std::fprintf(stderr, "\r\033[K%s", line.c_str());
  shown_ = true;
}

void Progress::Clear() {
  if (!shown_) return;
  (void)std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

const std::atomic<bool>& CatchInterrupt() {
  Catch(SIGINT);
  if (!Terminated()) {
    Catch(SIGTERM);
    Catch(SIGHUP);
  }
  return interrupted;
}

void AddGroupToKill(pid_t group) {
  for (std::atomic<pid_t>& place : groups_to_kill) {
    pid_t none = 0;
    if (place.compare_exchange_strong(none, group)) return;
  }
}

void RemoveGroupToKill(pid_t group) {
  for (std::atomic<pid_t>& place : groups_to_kill) {
    pid_t expected = group;
    if (place.compare_exchange_strong(expected, 0)) return;
  }
}

bool Interrupted() {
  return interrupted.load();
}

void ForgetInterrupt() {
  if (Terminated()) return;
  interrupted.store(false);
  Catch(SIGINT);
}

bool Terminated() {
  return termination.load() != 0;
}

void EndByTermination() {
  if (!Terminated()) return;
  (void)std::signal(termination.load(), SIG_DFL);
  (void)std::raise(termination.load());
}

Result<std::string> ReadTextFile(const std::string& path, std::size_t max_bytes) {
  const std::unique_ptr<std::FILE, FileCloser> file(path == "-" ? stdin
                                                                : std::fopen(path.c_str(), "rb"));
  const std::string name = path == "-" ? "standard input" : path;
  if (!file) return Status(StatusCode::kIo, name + ": cannot open: " + std::strerror(errno));
  std::string text;
  char block[1 << 16];
  while (const std::size_t count = std::fread(block, 1, sizeof(block), file.get())) {
    if (count > max_bytes - text.size()) {
      return InvalidArgument(StrCat(name, ": more than ",
                                    HumanBytes(static_cast<std::int64_t>(max_bytes)),
                                    ", which is the most that is read"));
    }
    text.append(block, count);
  }
  if (std::ferror(file.get()) != 0) {
    return Status(StatusCode::kIo, name + ": cannot read: " + std::strerror(errno));
  }
  return text;
}

Result<std::vector<std::int32_t>> ParseTokens(std::string_view text) {
  std::vector<std::int32_t> tokens;
  constexpr std::string_view kSeparators = ", \t\r\n";
  for (std::size_t at = text.find_first_not_of(kSeparators); at != std::string_view::npos;
       at = text.find_first_not_of(kSeparators, at)) {
    const std::size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const auto token = ParseNumber<std::int32_t>(word);
    if (!token) return InvalidArgument(StrCat("'", word.substr(0, 40), "' is not a token id"));
    tokens.push_back(*token);
    at = end;
  }
  return tokens;
}

}  // namespace kvcache::app
