// A process that lines go to and come from, over its standard input and output.
//
// The process has a group of its own, so that Ctrl-C in the terminal does not end it. What it writes to standard error
// is kept for messages. It ends with the object: its input is closed; if it stays, SIGTERM and then SIGKILL follow.
//
// Thread safety: one thread at a time.
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

  // Writes `line`, which has no line break, and a line break. Errors: as ReadLine.
  Status WriteLine(std::string_view line, Deadline deadline);
  // Returns the next line, without its end. Errors: kIo: the process has ended (with its last words), or nothing came
  // until the deadline; kCancelled: Ctrl-C; kUnsupported: the line is longer than 16 MiB.
  Result<std::string> ReadLine(Deadline deadline);

 private:
  ChildProcess() = default;

  // Waits until something can be read, or written if `writes`, and reads what is there.
  Status Wait(bool writes, Deadline deadline, bool& can_write);
  // Reads what is there. Returns false at the end.
  static bool Take(FileDescriptor& from, std::string& into);
  Status Ended();

  pid_t pid_ = -1;
  FileDescriptor input_, output_, errors_;  // of the process
  std::string read_;                        // not taken yet
  std::size_t searched_ = 0;                // bytes of it without a line break
  std::string last_words_;                  // on standard error
};

}  // namespace kvcache::app
