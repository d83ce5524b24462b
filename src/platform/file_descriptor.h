// An open file or socket, which closes with the object.
//
// Thread safety: a value of one thread.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvcache {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes an open descriptor, or -1.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { (void)Close(); }

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Closes it, if it is open. Returns 0 or an errno value.
  int Close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || close(fd) == 0 ? 0 : errno;
  }

 private:
  int fd_ = -1;
};

}  // namespace kvcache
