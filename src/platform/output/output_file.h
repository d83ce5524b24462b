// Writes a file of a known size from its beginning to its end.
//
// A regular file, or a name that nothing has, becomes a NewFile: complete or not there. A device
// or a pipe is written to as it is and never replaced.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvcache/status.h"
#include "platform/file_descriptor.h"
#include "platform/output/new_file.h"

namespace kvcache {

class OutputFile {
 public:
  // Errors as in NewFile::Create. Opening a pipe waits for its reader; a signal ends the wait
  // with an error.
  static Result<OutputFile> Create(const std::string& path, std::uint64_t size_bytes);

  // Appends. REQUIRES: size_bytes in sum at most. A signal that is caught ends a write that waits
  // for a pipe's reader with an error.
  Status Write(std::span<const std::byte> bytes);

  // Gives a new file its name, once all bytes are written.
  Status Commit();

 private:
  explicit OutputFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::unique_ptr<NewFile> file_;  // of a regular file
  FileDescriptor fd_;              // of a device or pipe
  std::uint64_t written_ = 0;
};

}  // namespace kvcache
