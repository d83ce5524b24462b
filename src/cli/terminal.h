// What the commands share in speaking with people: progress, Ctrl-C, input files.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "kvcache/status.h"

namespace kvcache::cli {

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();

// A line on stderr that is written over until it is cleared; nothing unless stderr is a
// terminal.
class Progress {
 public:
  ~Progress() { Clear(); }
  void Show(const std::string& line);
  void Clear();

 private:
  bool shown_ = false;
};

// True from the first Ctrl-C, SIGTERM or SIGHUP on; the second one ends the process. A system call
// that waits ends with EINTR.
const std::atomic<bool>& CatchInterrupt();

// Returns whether a signal that CatchInterrupt catches has come since ForgetInterrupt.
bool Interrupted();

// Forgets a Ctrl-C: the next one is the first one again.
void ForgetInterrupt();

// Has SIGTERM or SIGHUP come? Then the program is to clean up and end.
bool Terminated();

// Ends the process by the signal that asked for it, if one did: its parent sees which.
void EndByTermination();

// Larger files are refused, so that an endless one (a device, a pipe) does not fill the memory.
inline constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;

// The whole file; "-" is standard input. Errors name the path and the system's reason, or
// `max_bytes`.
Result<std::string> ReadTextFile(const std::string& path, std::size_t max_bytes = kMaxTextBytes);

// "1,2 3\n4" → {1, 2, 3, 4}. kInvalidArgument names what is not a number.
Result<std::vector<std::int32_t>> ParseTokens(std::string_view text);

}  // namespace kvcache::cli
