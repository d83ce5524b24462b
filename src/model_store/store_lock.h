// A lock on the local store of models, and the memory of what was written under it: until a manifest names that,
// it is removed again.
//
//   ROOT/.kvcache-create.list   what is being written, one a line: digests of blobs, "folder PATH" of folders, from ROOT
//                               on. If this process is killed, the next one that locks the store takes them over: it
//                               uses them, or removes them.
//   ROOT/.kvcache-create.gguf   weights that are being converted
//
// Thread safety: one thread at a time. Locks of threads and processes wait for each other.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "platform/file_descriptor.h"

namespace kvcache {

class StoreLock {
 public:
  // Waits for the lock (flock) on the folder. Creates the folder. `cancelled` ends waiting with kCancelled; empty: never.
  static Result<StoreLock> Take(const std::string& root,
                                const std::function<bool()>& cancelled = {});

  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&& other) = delete;
  // Removes what was added or taken over since Keep, except the blobs of pulls (pull_claim.h), and the folders that were
  // made for it. Then gives the lock back.
  ~StoreLock();

  // Makes a folder and those that contain it. Notes those of them that are in the store.
  Status MakeFolder(const std::string& path);

  // Notes a blob that is not there yet and is about to be written to `path`.
  Status AddBlob(const std::string& digest, const std::string& path);

  // What a killed process noted.
  struct Leftovers {
    std::vector<std::string> digests{};
    std::vector<std::string> folders{};  // paths; a folder before those in it
  };
  // Returns nothing if there is no note.
  std::optional<Leftovers> Left() const;
  // Takes over its note, its folders, and those of its blobs (digest and path) that no manifest names.
  void TakeOver(const std::map<std::string, std::string>& blobs,
                const std::vector<std::string>& folders);

  // The blobs of these digests stay, and the folders that are not empty. The others are removed.
  void Keep(const std::set<std::string>& digests);

  // Returns the path for weights that are being converted.
  static std::string ConvertedPath(const std::string& root);

 private:
  explicit StoreLock(std::string root) : root_(std::move(root)) {}
  std::string ListPath() const;
  Status Note(const std::string& line);
  void RemoveRest();

  std::string root_;
  FileDescriptor fd_;
  bool owns_list_ = false;
  std::vector<std::string> folders_;          // a folder before those in it
  std::map<std::string, std::string> blobs_;  // digest and path
};

}  // namespace kvcache
