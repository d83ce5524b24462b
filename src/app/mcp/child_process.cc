#include "app/mcp/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxLine = std::size_t{16} << 20;
constexpr std::size_t kLastWords = 1000;             // bytes of standard error that are kept
constexpr auto kPatience = std::chrono::seconds(2);  // for a process that is to end

struct Pipe {
  FileDescriptor read, write;
};

Result<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Status(StatusCode::kIo, StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Returns pointers to the texts, and a null pointer.
std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns this process's environment, with the server's variables in place of those of the same names.
std::vector<std::string> EnvironmentOf(const McpServer& server) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view variable = *at;
    const std::string_view name = variable.substr(0, variable.find('='));
    const bool replaced = std::any_of(server.environment.begin(), server.environment.end(),
                                      [&](const auto& own) { return own.first == name; });
    if (!replaced) variables.emplace_back(variable);
  }
  for (const auto& [name, value] : server.environment) variables.push_back(name + "=" + value);
  return variables;
}

// The signals that this program ignores or waits for act in the new process as usual.
void SetAttributes(posix_spawnattr_t& attributes) {
  sigset_t usual;
  sigemptyset(&usual);
  posix_spawnattr_setsigmask(&attributes, &usual);
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) sigaddset(&usual, signal);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
}

// Starts the command with these ends as its standard streams. Returns 0 or an errno value.
int Spawn(const McpServer& server, int input, int output, int errors, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&actions) != 0) return ENOMEM;
  if (posix_spawnattr_init(&attributes) != 0) {
    posix_spawn_file_actions_destroy(&actions);
    return ENOMEM;
  }
  SetAttributes(attributes);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  if (!server.folder.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, server.folder.c_str());
  }
  std::vector<std::string> command = server.command;
  std::vector<std::string> environment = EnvironmentOf(server);
  const std::vector<char*> arguments = Pointers(command);
  const std::vector<char*> variables = Pointers(environment);
  const int error = posix_spawnp(&pid, command.front().c_str(), &actions, &attributes,
                                 arguments.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Returns whether the process ended within the time.
bool WaitFor(pid_t pid, Clock::duration time) {
  const auto deadline = Clock::now() + time;
  for (;;) {
    const pid_t found = waitpid(pid, nullptr, WNOHANG);
    if (found == pid || (found < 0 && errno != EINTR)) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000));
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::Start(const McpServer& server) {
  KVCACHE_ASSIGN_OR_RETURN(Pipe input, MakePipe());
  KVCACHE_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  KVCACHE_ASSIGN_OR_RETURN(Pipe errors, MakePipe());
  std::unique_ptr<ChildProcess> process(new ChildProcess);
  const int error =
      Spawn(server, input.read.get(), output.write.get(), errors.write.get(), process->pid_);
  if (error != 0) {
    process->pid_ = -1;
    return Status(StatusCode::kIo, StrCat("cannot start ", Quoted(server.command.front()), ": ",
                                          std::strerror(error)));
  }
  for (const int fd : {input.write.get(), output.read.get(), errors.read.get()}) {
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  process->input_ = std::move(input.write);
  process->output_ = std::move(output.read);
  process->errors_ = std::move(errors.read);
  return process;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  (void)input_.Close();
  if (WaitFor(pid_, kPatience)) return;
  (void)kill(-pid_, SIGTERM);
  if (WaitFor(pid_, kPatience)) return;
  (void)kill(-pid_, SIGKILL);
  (void)WaitFor(pid_, kPatience);
}

Status ChildProcess::WriteLine(std::string_view line, Deadline deadline) {
  std::string rest = StrCat(line, "\n");
  while (!rest.empty()) {
    bool can_write = false;
    KVCACHE_RETURN_IF_ERROR(Wait(true, deadline, can_write));
    if (!can_write) continue;
    const ssize_t written = write(input_.get(), rest.data(), rest.size());
    if (written > 0) rest.erase(0, static_cast<std::size_t>(written));
    if (written < 0 && errno == EPIPE) return Ended();
  }
  return Status::Ok();
}

Result<std::string> ChildProcess::ReadLine(Deadline deadline) {
  for (;;) {
    const std::size_t end = read_.find('\n', searched_);
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      searched_ = 0;
      return line;
    }
    searched_ = read_.size();
    if (searched_ > kMaxLine) return Unsupported("a line has more than 16 MiB");
    bool can_write = false;
    KVCACHE_RETURN_IF_ERROR(Wait(false, deadline, can_write));
  }
}

Status ChildProcess::Wait(bool writes, Deadline deadline, bool& can_write) {
  std::array<pollfd, 3> polled{pollfd{output_.get(), POLLIN, 0}, pollfd{errors_.get(), POLLIN, 0},
                               pollfd{writes ? input_.get() : -1, POLLOUT, 0}};
  if (Interrupted()) return {StatusCode::kCancelled, "interrupted"};
  const int ready = poll(polled.data(), polled.size(), MillisecondsUntil(deadline));
  if (ready < 0 && errno != EINTR) {
    return {StatusCode::kIo, StrCat("cannot wait for the process: ", std::strerror(errno))};
  }
  if (ready == 0 && Clock::now() >= deadline) return {StatusCode::kIo, "no answer came in time"};
  if (ready <= 0) return Status::Ok();
  if (polled[1].revents != 0 && !Take(errors_, last_words_)) errors_ = FileDescriptor();
  if (last_words_.size() > kLastWords) last_words_.erase(0, last_words_.size() - kLastWords);
  if (polled[0].revents != 0 && !Take(output_, read_)) return Ended();
  can_write = polled[2].revents != 0;
  return Status::Ok();
}

bool ChildProcess::Take(FileDescriptor& from, std::string& into) {
  std::array<char, 65536> buffer{};
  const ssize_t size = read(from.get(), buffer.data(), buffer.size());
  if (size > 0) into.append(buffer.data(), static_cast<std::size_t>(size));
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

// What the process wrote to standard error before its end tells more than the end.
Status ChildProcess::Ended() {
  errno = 0;
  while (errors_.is_open() && Take(errors_, last_words_) && errno == 0) {
  }
  const std::size_t end = last_words_.find_last_not_of(" \r\n\t") + 1;
  const std::string_view text = std::string_view(last_words_).substr(0, end);
  return {StatusCode::kIo, text.empty() ? std::string("the process has ended")
                                        : StrCat("the process has ended; it said: ", text)};
}

}  // namespace kvcache::app
