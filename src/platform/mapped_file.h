// A file as read-only memory.
//
// The pages belong to the operating system: a range that nobody reads takes no memory, and
// reading it for the first time may wait for the disk. The mapping is private, so a file that
// is replaced by rename keeps its old bytes here; one that is *cut short* by another process
// while mapped makes a read past its new end fatal (SIGBUS), as with every mapped file;
// mapped_file_faults.h lets a program say which file it was.
//
// Thread safety: const calls from any number of threads. Move-only; owns the mapping.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kvcache/status.h"
#include "platform/file_identity.h"

namespace kvcache {

class MappedFile {
 public:
  // Maps the regular file at `path`. Errors: kNotFound if there is none, kInvalidArgument for
  // a directory or device, kIo with the operating system's words; all name the path.
  // An empty file is no error: bytes() is empty.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Valid as long as this object; 4096-byte aligned at least.
  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }
  // Returns what the file was when it was opened.
  const FileIdentity& identity() const { return identity_; }

  // Hints; they change how soon bytes are there, never which. `range` lies within bytes().
  // WillNeed starts reading ahead without waiting. Drop gives back the memory of the pages
  // that lie wholly within the range: for bytes that were copied elsewhere. Refused hints are
  // ignored.
  void WillNeed(std::span<const std::byte> range) const;
  void Drop(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, std::size_t size_bytes)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  FileIdentity identity_;
};

}  // namespace kvcache
