// A lock on a file, which threads and processes take in turn, with a bounded wait.
//
// A process may stop while it has a lock (SIGSTOP, a debugger), and nobody can take the lock from it. So nobody
// waits without an end. After a wait that was in vain, others do not wait for a while: they try once.
//
// The lock is that of flock(2): it ends with the process that has it.
//
// Thread safety: all calls from any number of threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "kvcache/status.h"
#include "store/retry_pause.h"

namespace kvcache::store {

// Takes the lock of an open file. Returns 0; EWOULDBLOCK if another process has it all the time; the number of
// another error.
int LockOpenFile(int fd, std::chrono::milliseconds max_wait);

// Returns which process has the lock of the file, as far as the system tells: "process 17, which is stopped," or
// "another process".
std::string LockHolder(const std::string& path);

class FileLock {
 public:
  // Opens the file, or makes it. Errors: kIo, in the operating system's words.
  static Result<std::unique_ptr<FileLock>> Open(std::string path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // As LockOpenFile; another thread of this process may have the lock, too.
  int Take(std::chrono::milliseconds max_wait);
  // REQUIRES: Take returned 0.
  void Release();
  const std::string& path() const { return path_; }

 private:
  FileLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  const int fd_;
  const std::string path_;
  std::mutex mutex_;
  std::condition_variable released_;
  bool is_taken_ = false;  // by a thread of this process
  RetryPause pause_{std::chrono::seconds(1), std::chrono::seconds(30)};
};

// Holds a lock until the end of its life, if it could be taken.
class FileLockGuard {
 public:
  FileLockGuard(FileLock& lock, std::chrono::milliseconds max_wait)
      : lock_(lock), error_(lock.Take(max_wait)) {}
  ~FileLockGuard() {
    if (error_ == 0) lock_.Release();
  }
  FileLockGuard(const FileLockGuard&) = delete;
  FileLockGuard& operator=(const FileLockGuard&) = delete;
  int error() const { return error_; }  // what Take returned

 private:
  FileLock& lock_;
  const int error_;
};

}  // namespace kvcache::store
