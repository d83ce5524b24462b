// A blob that is being fetched:
//
//   ROOT/blobs/.kvcache-HEX-SIZE.partial   the first bytes of the blob; goes on where it ended
//
// The size is in the name, so that a manifest that lies about it does not touch the bytes of another one. The file gets the blob's name when it is complete, has its digest, and is on the disk. A process that is
// killed leaves the file, and the next one continues it. The file's lock (flock) makes a second
// process wait, which then finds the blob.
//
// Thread safety: one thread at a time. Threads and processes wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/sha256.h"
#include "kvcache/status.h"
#include "model_store/manifest.h"
#include "platform/file_descriptor.h"

namespace kvcache {

class PartialBlob {
 public:
  // Opens or makes the file beside `blob_path`, and hashes what it has. `cancelled` ends waiting and
  // hashing with kCancelled. Errors: kIo.
  static Result<std::unique_ptr<PartialBlob>> Open(const ManifestLayer& layer,
                                                   const std::string& blob_path,
                                                   const std::function<bool()>& cancelled);
  ~PartialBlob();
  PartialBlob(const PartialBlob&) = delete;
  PartialBlob& operator=(const PartialBlob&) = delete;

  // Returns the path of the file, which lies beside `blob_path`.
  static std::string PathOf(const ManifestLayer& layer, const std::string& blob_path);

  // Removes those in a folder that nobody fetches and that were last written before `time`.
  static void RemoveOld(const std::string& folder, std::filesystem::file_time_type time);

  std::uint64_t size() const { return size_; }

  // Errors: kCorrupt: more bytes than the layer has; kIo, such as a full disk.
  Status Append(std::span<const std::byte> bytes);
  // Forgets all bytes.
  Status Restart();
  // Removes the file: somebody else has fetched the blob.
  Status Remove();
  // Checks size and digest, and gives the file its name. Errors: kCorrupt: the bytes are forgotten
  // then; kIo.
  Status Commit();

 private:
  PartialBlob(ManifestLayer layer, std::string blob_path)
      : layer_(std::move(layer)), blob_path_(std::move(blob_path)) {}

  Status Lock(const std::function<bool()>& cancelled);
  Status HashOld(const std::function<bool()>& cancelled);

  const ManifestLayer layer_;
  const std::string blob_path_;
  std::string path_;
  FileDescriptor fd_;
  bool is_locked_ = false;
  std::uint64_t size_ = 0;
  std::optional<Sha256> hash_;  // of the bytes that are there
};

}  // namespace kvcache
