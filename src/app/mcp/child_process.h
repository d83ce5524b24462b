// A process that lines go to and come from, over its standard input and output.
//
// The process has a group of its own, so that Ctrl-C in the terminal does not end it. The end of what it writes to
// standard error is kept for messages. It ends with the object: its input is closed; if it stays for two seconds,
// SIGTERM follows, and two seconds later SIGKILL. The processes that it leaves in its group get SIGTERM, and two seconds
// later SIGKILL.
//
// Thread safety: one thread at a time. The program ignores SIGPIPE.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "app/mcp/mcp_config.h"
#include "kvcache/status.h"
#include "platform/file_descriptor.h"

namespace kvcache::app {

class ChildProcess {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Starts the command, found as a shell would. Errors: kIo, with the command and the system's reason.
  static Result<std::unique_ptr<ChildProcess>> Start(const McpServer& server);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Writes `line`, which has no line break, and a line break. What a deadline or Ctrl-C left unwritten goes before the
  // next line. Errors: as ReadLine. All errors read as what the process does: "has ended".
  Status WriteLine(std::string_view line, Deadline deadline);
  // Returns the next line, without its end. Errors: kIo: the process has ended (with the last line of its standard
  // error), or no line came until the deadline; kCancelled: Ctrl-C; kUnsupported: the line is longer than 16 MiB, and
  // is left out.
  Result<std::string> ReadLine(Deadline deadline);

 private:
  ChildProcess() = default;

  // Waits until something can be read, or for `input_events` of the process's input, and reads what is there.
  Status Wait(short input_events, Deadline deadline);
  bool TakeOutput();
  // Reads what is there. Returns false at the end.
  static bool Take(FileDescriptor& from, std::string& into);
  void TakeErrors();
  Status Ended();
  bool EndsWithin(std::chrono::steady_clock::duration time);

  pid_t pid_ = -1;
  FileDescriptor input_, output_, errors_;  // of the process
  std::string unsent_;
  std::string read_;
  std::size_t taken_ = 0;     // bytes of it, in lines that ReadLine returned
  std::size_t searched_ = 0;  // bytes of it, behind which a line break may be
  bool skips_ = false;        // the line that is being read is too long
  std::string last_words_;    // on standard error
};

}  // namespace kvcache::app
