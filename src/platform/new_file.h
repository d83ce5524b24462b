// A file that appears under its name only when it is complete.
//
// Bytes go to a neighbour with a temporary name, which Commit() makes durable and renames; one
// that is never committed is removed. Whoever reads the name sees the old file or the new one.
//
// Thread safety: WriteAt from any number of threads at once; the rest from one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

class NewFile {
 public:
  // Makes room for `size_bytes` zero bytes at once where the file system can, so that a full
  // disk is known before the work. Errors: kIo with the operating system's words, kNotFound
  // for a directory that is not there; all name the path.
  static Result<std::unique_ptr<NewFile>> Create(const std::string& path, std::uint64_t size_bytes);

  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();  // removes what was not committed

  // REQUIRES: the range lies within the size (else kInvalidArgument). Retries short writes.
  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes);

  // Waits until the bytes are on the disk, then gives the file its name, in place of what had
  // it before. Once only.
  Status Commit();

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  NewFile(std::string path, std::string temporary, int fd, std::uint64_t size_bytes)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(fd),
        size_bytes_(size_bytes) {}

  const std::string path_;
  const std::string temporary_;
  int fd_;  // -1 once committed
  const std::uint64_t size_bytes_;
};

}  // namespace kvcache
