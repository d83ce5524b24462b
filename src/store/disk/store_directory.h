// The directory of a disk store: private to one user, and locked while a process opens the file in it.
//
// Thread safety: free functions; a lock belongs to one thread.
#pragma once

#include <chrono>
#include <string>

#include "kvcache/status.h"
#include "platform/file_descriptor.h"

namespace kvcache::store {

enum class MissingDirectory { kMake, kRefuse };

// Makes the directory and those above it, for this user alone, and returns its path without symbolic
// links. Errors: kInvalidArgument if it belongs to another user, or another user can write to it;
// kNotFound and kIo in the operating system's words. All name the path.
Result<std::string> PrepareStoreDirectory(const std::string& path, MissingDirectory missing);

// Excludes other processes while it exists.
class DirectoryLock {
 public:
  // Waits for another process that opens the store. Errors: kIo if the file system has no locks, or if the
  // other process takes longer than `max_wait`.
  static Result<DirectoryLock> Take(const std::string& directory,
                                    std::chrono::milliseconds max_wait);

 private:
  explicit DirectoryLock(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

}  // namespace kvcache::store
