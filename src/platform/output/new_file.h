// A file that appears under its name only when it is complete.
//
// Bytes go to a file without a name in the same directory. Commit() makes them durable and gives
// the file its name. Whoever reads the name sees the old file or the new one. An uncommitted file
// vanishes with the object or with the process, however that ends.
//
// A temporary name, ".kvcache-" and random digits, exists in two cases: on a file system without
// nameless files, and between the last two system calls of a Commit that replaces a file. A process
// that is killed then leaves it behind.
//
// A symbolic link stays and its target is replaced. Other hard links of a replaced file keep the
// old contents. The new file takes over the permission bits, the owner and the group; where the
// system refuses the group, the new file's group gets no access. A file whose mode is given has that mode in any case,
// and takes nothing over.
//
// Thread safety: WriteAt from any number of threads at once; the rest from one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvcache/status.h"
#include "platform/file_descriptor.h"

namespace kvcache {

struct OutputTarget;

class NewFile {
 public:
  // Makes room for `size_bytes` zero bytes at once where the file system can, so that a full
  // disk is known before the work. Errors: kIo with the operating system's words, kNotFound
  // for a directory that is not there, kInvalidArgument for a device or pipe, which cannot be
  // replaced; all name the path. `mode`: the permission bits, whatever umask says; without it, those of
  // the file that is replaced, or 0666 less umask.
  static Result<std::unique_ptr<NewFile>> Create(const std::string& path, std::uint64_t size_bytes,
                                                 std::optional<mode_t> mode = std::nullopt);

  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();  // removes what was not committed

  // REQUIRES: the range lies within the size (else kInvalidArgument). Retries short writes.
  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes);

  // Waits until the bytes so far are on the disk, so that a later Commit waits for less.
  Status WriteOut();

  // Waits until the bytes are on the disk, then gives the file its name, in place of what had
  // it before. Once only.
  Status Commit();

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  NewFile(std::string path, std::string target, std::uint64_t size_bytes)
      : path_(std::move(path)), target_(std::move(target)), size_bytes_(size_bytes) {}

  Status Open(const OutputTarget& target, std::optional<mode_t> given);
  Status Name();

  const std::string path_;    // as given
  const std::string target_;  // after its symbolic links
  const std::uint64_t size_bytes_;
  std::string temporary_;  // the name until Commit; empty while the file has none
  FileDescriptor fd_;      // closed once committed
};

}  // namespace kvcache
