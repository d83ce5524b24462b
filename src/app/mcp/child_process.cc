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
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
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
constexpr auto kLastWordsTime = std::chrono::milliseconds(200);  // for them, behind the end

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
  for (const auto& [name, value] : server.environment)
    variables.push_back(StrCat(name, "=", value));
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

// Returns whether the process has ended. It is not reaped, so that nobody else gets its number.
bool HasEnded(pid_t pid) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    return errno != EINTR;
  }
  return info.si_pid == pid;
}

// Returns whether a process of the group lives. kill() would count the ended leader, which is not reaped yet.
bool GroupLives(pid_t group) {
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    std::ifstream file(at->path() / "stat");
    std::string text;
    (void)std::getline(file, text, '\0');
    // "PID (NAME) STATE PARENT GROUP ...": a name may have parentheses, blanks and line breaks.
    std::istringstream fields(text.erase(0, text.rfind(')') + 1));
    char state = 0;
    pid_t parent = 0, own_group = 0;
    if (fields >> state >> parent >> own_group && own_group == group && state != 'Z') return true;
  }
  return false;
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000));
}

Status Interruption() {
  return {StatusCode::kCancelled, "interrupted"};
}
Status Lateness() {
  return {StatusCode::kIo, "does not answer in time"};
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
    const std::string folder =
        server.folder.empty() ? "" : StrCat(" in the folder ", Quoted(server.folder));
    return Status(StatusCode::kIo, StrCat("cannot start ", Quoted(server.command.front()), folder,
                                          ": ", std::strerror(error)));
  }
  AddGroupToKill(process->pid_);
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
  if (!EndsWithin(kPatience)) {
    (void)kill(-pid_, SIGTERM);
    (void)EndsWithin(kPatience);
  }
  // Processes that it has started and that it left behind end as well.
  if (HasEnded(pid_) && GroupLives(pid_)) {
    (void)kill(-pid_, SIGTERM);
    const auto deadline = Clock::now() + kPatience;
    while (GroupLives(pid_) && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  (void)kill(-pid_, SIGKILL);
  RemoveGroupToKill(pid_);  // before another process gets the number
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Reads meanwhile, because a process that waits for a reader does not see the end of its input.
bool ChildProcess::EndsWithin(Clock::duration time) {
  const auto deadline = Clock::now() + time;
  while (!HasEnded(pid_)) {
    if (Clock::now() >= deadline) return false;
    for (FileDescriptor* const from : {&output_, &errors_}) {
      std::string ignored;
      if (from->is_open() && !Take(*from, ignored)) *from = FileDescriptor();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Status ChildProcess::WriteLine(std::string_view line, Deadline deadline) {
  unsent_ += line;
  unsent_ += '\n';
  for (;;) {
    const ssize_t written = write(input_.get(), unsent_.data(), unsent_.size());
    if (written < 0 && errno != EAGAIN && errno != EINTR) return Ended();
    if (written > 0) unsent_.erase(0, static_cast<std::size_t>(written));
    if (unsent_.empty()) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(Wait(POLLOUT, deadline));
  }
}

Result<std::string> ChildProcess::ReadLine(Deadline deadline) {
  for (;;) {
    // Here as well as in Wait: a process may write lines without end.
    if (Interrupted()) return Interruption();
    if (Clock::now() >= deadline) return Lateness();
    const std::size_t end = read_.find('\n', searched_);
    if (end != std::string::npos) {
      std::string line = read_.substr(taken_, end - taken_);
      taken_ = searched_ = end + 1;
      if (!std::exchange(skips_, false)) return line;
      continue;
    }
    searched_ = read_.size();
    if (searched_ - taken_ > kMaxLine) {
      read_.clear();
      taken_ = searched_ = 0;
      skips_ = true;
      return Unsupported("writes a line of more than 16 MiB");
    }
    KVCACHE_RETURN_IF_ERROR(Wait(0, deadline));
  }
}

Status ChildProcess::Wait(short input_events, Deadline deadline) {
  // A process that writes without end and reads nothing must not fill the memory.
  const bool takes = input_events == 0 || read_.size() - taken_ <= kMaxLine;
  std::array<pollfd, 3> polled{pollfd{takes ? output_.get() : -1, POLLIN, 0},
                               pollfd{errors_.get(), POLLIN, 0},
                               pollfd{input_events != 0 ? input_.get() : -1, input_events, 0}};
  if (Interrupted()) return Interruption();
  const int ready = poll(polled.data(), polled.size(), MillisecondsUntil(deadline));
  if (ready < 0 && errno != EINTR) {
    return {StatusCode::kIo, StrCat("cannot wait for the process: ", std::strerror(errno))};
  }
  if (ready > 0 && polled[1].revents != 0) TakeErrors();
  if (ready > 0 && polled[0].revents != 0 && !TakeOutput()) return Ended();
  if (Clock::now() < deadline) return Status::Ok();
  return takes ? Lateness() : Status(StatusCode::kIo, "writes without end and does not read");
}

// Lines that were taken are erased once they are half of the text: each byte moves a few times at most.
bool ChildProcess::TakeOutput() {
  if (taken_ >= read_.size() / 2) {
    read_.erase(0, taken_);
    searched_ -= taken_;
    taken_ = 0;
  }
  return Take(output_, read_);
}

bool ChildProcess::Take(FileDescriptor& from, std::string& into) {
  std::array<char, 65536> buffer{};
  const ssize_t size = read(from.get(), buffer.data(), buffer.size());
  if (size > 0) into.append(buffer.data(), static_cast<std::size_t>(size));
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

void ChildProcess::TakeErrors() {
  if (!Take(errors_, last_words_)) errors_ = FileDescriptor();
  if (last_words_.size() > kLastWords) last_words_.erase(0, last_words_.size() - kLastWords);
}

// What the process wrote to standard error before its end tells more than the end.
Status ChildProcess::Ended() {
  const auto deadline = Clock::now() + kLastWordsTime;
  while (errors_.is_open() && Clock::now() < deadline) {
    pollfd polled{errors_.get(), POLLIN, 0};
    if (poll(&polled, 1, MillisecondsUntil(deadline)) > 0) TakeErrors();
  }
  const std::size_t end = last_words_.find_last_not_of(" \r\n\t") + 1;
  std::string_view text = std::string_view(last_words_).substr(0, end);
  text.remove_prefix(text.rfind('\n') + 1);
  return {StatusCode::kIo,
          text.empty() ? std::string("has ended") : StrCat("has ended; it said: ", text)};
}

}  // namespace kvcache::app
