#include "platform/file_lock.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "platform/os_error.h"

namespace kvcache {

Status WaitForFileLock(int fd, const std::string& path, const std::function<bool()>& cancelled) {
  constexpr auto kPoll = std::chrono::milliseconds(100);
  while (flock(fd, cancelled ? LOCK_EX | LOCK_NB : LOCK_EX) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return OsError("lock", path, errno);
    if (cancelled && cancelled()) return {StatusCode::kCancelled, "stopped"};
    if (cancelled) std::this_thread::sleep_for(kPoll);
  }
  return Status::Ok();
}

bool IsFileOf(const std::string& path, int fd) {
  struct stat named {};
  struct stat opened {};
  return stat(path.c_str(), &named) == 0 && fstat(fd, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

}  // namespace kvcache
