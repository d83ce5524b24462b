#include "platform/output/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace kvcache {
namespace {

bool ReaderHasGone() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

}  // namespace

Status FlushStandardOutput() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (flushed && std::ferror(stdout) == 0) return Status::Ok();
  // The reason of an earlier write is not known any more, but whether the reader has gone can be asked.
  const int known = flushed && ReaderHasGone() ? EPIPE : flushed ? 0 : error;
  std::string reason = known == 0 ? "" : std::string(": ") + std::strerror(known);
  Status status(StatusCode::kIo, "cannot write to standard output" + std::move(reason));
  errno = known;
  return status;
}

}  // namespace kvcache
