// What a pull needs, before a manifest names it:
//
//   ROOT/.kvcache-pull-HEX.list   HEX: of the model's name. Lines: "name HOST/NAMESPACE/MODEL/TAG", then a line
//                                 "DIGEST SIZE" for each blob
//
// As long as the list is there, nobody removes its blobs: not `rm`, and not the next writer after a killed one. A pull
// that runs holds the list's lock (flock), so that a second pull of the name waits. A pull that was stopped leaves the list,
// and the next pull of the name, `rm`, or time ends it.
//
// Thread safety: a claim is one thread's at a time; the functions are for any number of threads and processes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "model_store/manifest.h"
#include "model_store/model_name.h"
#include "platform/file_descriptor.h"

namespace kvcache {

class PullClaim {
 public:
  // A list that lies in a store.
  struct Listed {
    std::string path{};
    std::string name{};  // as ModelName::Path
    std::vector<ManifestLayer> blobs{};
    std::filesystem::file_time_type written{};
  };

  // Waits until nobody else pulls the name, and makes the list, without blobs. Creates the folder. `cancelled` ends waiting
  // with kCancelled. Errors: kIo.
  static Result<std::unique_ptr<PullClaim>> Take(const std::string& root, const ModelName& name,
                                                 const std::function<bool()>& cancelled);
  // Leaves the list, unless it has no blob or Finish was called.
  ~PullClaim();
  PullClaim(const PullClaim&) = delete;
  PullClaim& operator=(const PullClaim&) = delete;

  // Returns the blobs that a pull before this one wrote down.
  const std::vector<ManifestLayer>& old_blobs() const { return old_blobs_; }

  // Writes the list. REQUIRES: the store is locked, so that nobody who removes blobs has read the lists before.
  Status Write(const std::vector<ManifestLayer>& blobs);
  // Removes the list: a manifest names the blobs.
  void Finish();

  // Returns the lists of a store. Errors: kIo: one of them cannot be read.
  static Result<std::vector<Listed>> List(const std::string& root);
  // Returns the digests of all lists.
  static Result<std::set<std::string>> Digests(const std::string& root);
  // Removes a list that no pull holds. Returns whether it is gone.
  static bool Remove(const std::string& path);

 private:
  PullClaim(std::string path, std::string name) : path_(std::move(path)), name_(std::move(name)) {}

  const std::string path_;
  const std::string name_;
  FileDescriptor fd_;  // locked
  std::vector<ManifestLayer> old_blobs_;
  bool has_blobs_ = false;
};

}  // namespace kvcache
