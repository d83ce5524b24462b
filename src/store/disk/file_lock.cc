#include "store/disk/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "platform/os_error.h"

namespace kvcache::store {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kShortestPause{50};
constexpr std::chrono::microseconds kLongestPause{2000};

// A line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 17 08:01:1234 0 EOF"; 0 if it is of another file.
long HolderIn(const std::string& line, const std::string& file) {
  std::istringstream words(line);
  std::string number, kind, mode, access, place;
  long process = 0;
  words >> number >> kind >> mode >> access >> process >> place;
  return kind == "FLOCK" && place == file ? process : 0;
}

bool IsStopped(long process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(status, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

}  // namespace

int LockOpenFile(int fd, std::chrono::milliseconds max_wait) {
  const Clock::time_point end = Clock::now() + max_wait;
  for (auto pause = kShortestPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
    if (errno != EWOULDBLOCK && errno != EINTR) return errno;
    if (Clock::now() >= end) return EWOULDBLOCK;
    std::this_thread::sleep_for(pause);
  }
}

std::string LockHolder(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return "another process";
  char file[64];
  std::snprintf(file, sizeof(file), "%02x:%02x:%llu", major(info.st_dev), minor(info.st_dev),
                static_cast<unsigned long long>(info.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    const long process = HolderIn(line, file);
    if (process <= 0) continue;
    return StrCat("process ", process, IsStopped(process) ? ", which is stopped," : "");
  }
  return "another process";
}

Result<std::unique_ptr<FileLock>> FileLock::Open(std::string path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (fd < 0) return OsError("write to the store's directory:", path, errno);
  return std::unique_ptr<FileLock>(new FileLock(fd, std::move(path)));
}

FileLock::~FileLock() {
  (void)close(fd_);
}

int FileLock::Take(std::chrono::milliseconds max_wait) {
  std::unique_lock lock(mutex_);
  const Clock::time_point start = Clock::now();
  if (pause_.Left(start) > Clock::duration::zero()) max_wait = std::chrono::milliseconds(0);
  const auto is_free = [&] { return !is_taken_; };
  if (!released_.wait_until(lock, start + max_wait, is_free)) return EWOULDBLOCK;
  is_taken_ = true;
  lock.unlock();
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(start + max_wait - Clock::now());
  const int error = LockOpenFile(fd_, std::max(left, std::chrono::milliseconds(0)));
  lock.lock();
  if (error == 0) {
    pause_.Worked();
    return 0;
  }
  if (error == EWOULDBLOCK) pause_.Failed(Clock::now());
  is_taken_ = false;
  released_.notify_one();
  return error;
}

void FileLock::Release() {
  (void)flock(fd_, LOCK_UN);
  const std::lock_guard lock(mutex_);
  is_taken_ = false;
  released_.notify_one();
}

}  // namespace kvcache::store
