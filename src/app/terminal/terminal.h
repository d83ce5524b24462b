// Shared by the commands: progress on the terminal, Ctrl-C, input files.
//
// Thread safety: one thread at a time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "kvcache/status.h"

namespace kvcache::app {

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();

// Returns the text in the terminal's dimmed letters, for standard error; as it is if that is no terminal, or if the
// environment has NO_COLOR.
std::string Dimmed(std::string_view text);

// A line on standard error that is overwritten until it is cleared. Does nothing if standard error
// is not a terminal.
class Progress {
 public:
  ~Progress() { Clear(); }
  void Show(const std::string& line);
  void Clear();

 private:
  bool shown_ = false;
};

// Catches SIGINT (Ctrl-C), SIGTERM and SIGHUP. Returns a flag that the first of them sets; the
// second one ends the process. A system call that waits ends with EINTR.
const std::atomic<bool>& CatchInterrupt();

// Lets the second signal kill this process group, too, before it ends the process. 64 groups are remembered.
void AddGroupToKill(pid_t group);
void RemoveGroupToKill(pid_t group);

// Returns whether a signal that CatchInterrupt catches has come since ForgetInterrupt.
bool Interrupted();

// Clears the flag of a Ctrl-C: the next one counts as the first. SIGTERM and SIGHUP stay.
void ForgetInterrupt();

// Returns whether SIGTERM or SIGHUP has come: the program must clean up and end.
bool Terminated();

// After SIGTERM or SIGHUP, ends the process by that signal, so that its parent sees which; else
// does nothing.
void EndByTermination();

// Larger files are refused, so that an endless one (a device, a pipe) cannot fill the memory.
inline constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;

// Reads the whole file; "-" is standard input. Errors name the path and the system's reason, or
// `max_bytes`.
Result<std::string> ReadTextFile(const std::string& path, std::size_t max_bytes = kMaxTextBytes);

// Parses "1,2 3\n4" as {1, 2, 3, 4}. kInvalidArgument names the word that is not a number.
Result<std::vector<std::int32_t>> ParseTokens(std::string_view text);

}  // namespace kvcache::app
