// The local store of models, in Ollama's layout on disk:
//
//   ROOT/manifests/HOST/NAMESPACE/MODEL/TAG   JSON (manifest.h)
//   ROOT/blobs/sha256-HEX                     a layer: weights, a template, parameters …
//
// Writing. A blob or manifest appears under its name when it is complete and on the disk
// (platform/output/new_file.h), and a manifest only after its blobs. A failed call leaves nothing: what it added is
// removed with the lock (store_lock.h). A process that is killed leaves whole blobs without a manifest at worst;
// the same call then uses them again, and any other call removes them. A full disk is an error, and every model that was there stays.
//
// Reading. A manifest or blob must be a regular file below ROOT. ROOT, and folders in it, may be
// symbolic links; a link from inside of ROOT to the outside is refused. A blob must have the size
// that the manifest states. Verify() also compares the digest, which reads the whole file.
//
// Thread safety: any number of threads and processes. Those that write hold an exclusive lock
// (flock) on ROOT.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "model_store/manifest.h"
#include "model_store/model_name.h"
#include "model_store/partial_blob.h"
#include "model_store/pull_claim.h"
#include "model_store/store_lock.h"

namespace kvcache {

class ModelStore {
 public:
  // The folder need not exist until something is written.
  explicit ModelStore(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }

  // Returns the names that have manifests, sorted. A store that does not exist is empty. Files with
  // names that are not valid are skipped.
  Result<std::vector<ModelName>> List() const;

  // Reads and checks a manifest. Errors: kNotFound: there is none; those of ParseManifest.
  Result<Manifest> Read(const ModelName& name) const;

  // Returns the path of a layer's blob. Errors: kNotFound: it is missing; kCorrupt: it has another
  // size, is not a regular file, or lies outside of the store.
  Result<std::string> BlobPath(const ManifestLayer& layer) const;

  // Reads a layer of text, of at most `max_bytes`, and checks its digest.
  Result<std::string> ReadText(const ManifestLayer& layer, std::size_t max_bytes) const;

  // Compares the bytes of a blob with its digest. `cancelled` ends reading with kCancelled. Errors: kCorrupt; those of
  // BlobPath.
  Status Verify(const ManifestLayer& layer, const std::function<bool()>& cancelled = {}) const;

  // Returns whether a layer's blob is there, with its size and digest. Reads all of it; false if `cancelled` ends that.
  bool Has(const ManifestLayer& layer, const std::function<bool()>& cancelled = {}) const;

  // Returns the bytes that are not here of these blobs, by their sizes alone; the largest number if they are more.
  std::uint64_t MissingBytes(const std::vector<ManifestLayer>& layers) const;

  // Opens the blob for fetching (PartialBlob::Open). Needs no lock of the store: what it leaves is whole.
  Result<std::unique_ptr<PartialBlob>> OpenPartial(const ManifestLayer& layer,
                                                   const std::function<bool()>& cancelled) const;

  // Returns whether any of these blobs is here, or a part of it.
  bool HasPartOf(const std::vector<ManifestLayer>& layers) const;

  // Begins a pull: waits for another pull of the name and for the store's lock, and notes the blobs, which nobody removes
  // from then on (pull_claim.h). Of a pull before that was stopped, what this one does not need is removed. `cancelled`
  // ends waiting with kCancelled. REQUIRES: this thread has no lock of the store.
  Result<std::unique_ptr<PullClaim>> Claim(const ModelName& name,
                                           const std::vector<ManifestLayer>& blobs,
                                           const std::function<bool()>& cancelled) const;

  // Waits for the lock that all calls below need. Creates the folder. Takes over what a killed process left, and removes
  // what pulls left that were stopped two weeks ago. `cancelled` ends waiting with kCancelled; empty: never.
  Result<StoreLock> Lock(const std::function<bool()>& cancelled = {}) const;

  // Stores bytes, or the bytes of a file, as a layer. A blob that is there already is kept. Without a call of Write,
  // a new blob is removed with the lock.
  Result<ManifestLayer> AddBytes(StoreLock& lock, std::string_view type,
                                 std::string_view bytes) const;
  Result<ManifestLayer> AddFile(StoreLock& lock, std::string_view type,
                                const std::string& path) const;

  // Gives the name to a manifest whose blobs are stored, in place of what it named before, whose blobs are removed unless
  // another manifest or a pull needs them.
  Status Write(StoreLock& lock, const ModelName& name, const Manifest& manifest) const;

  // Removes the name, also one of which only a stopped pull is here, and the blobs that no other manifest names and no
  // pull needs. Errors: kNotFound; kUnsupported: it is being pulled. A manifest that cannot be read
  // might name any blob: then all blobs stay, and the error says so (the name is removed).
  Status Remove(const StoreLock& lock, const ModelName& name) const;

 private:
  std::string ManifestPath(const ModelName& name) const;
  std::string PathOfDigest(std::string_view digest) const;
  Status CheckInside(const std::string& path) const;
  Status MakeFolder(StoreLock& lock, const std::string& path) const;
  // Returns the digests that manifests name and pulls need. Errors: one of them cannot be read.
  Result<std::set<std::string>> UsedDigests() const;
  // Removes blobs that are not used, and what pulls have of them. Errors: those of UsedDigests; kIo.
  Status RemoveUnused(const std::vector<ManifestLayer>& blobs) const;
  // Ends a stopped pull: its list, and its blobs that are not used. Returns whether nobody holds it.
  bool EndPull(const PullClaim::Listed& pull) const;
  void RemoveOldPulls() const;
  void TakeLeftovers(StoreLock& lock) const;
  template <typename Writer>
  Status AddBlob(StoreLock& lock, const ManifestLayer& layer, const Writer& write) const;

  std::string root_;
};

}  // namespace kvcache
