#include "app/terminal/checked_output.h"

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "platform/output/standard_output.h"

namespace kvcache::app {

int CheckOutput(const char* program, int status) {
  const Status flushed = FlushStandardOutput();
  if (!flushed.ok() && errno == EPIPE) {
    (void)std::signal(SIGPIPE, SIG_DFL);
    (void)std::raise(SIGPIPE);
  }
  if (flushed.ok() || status != 0) return status;
  (void)std::fprintf(stderr, "%s: %s\n", program, flushed.message().c_str());
  return 1;
}

}  // namespace kvcache::app
