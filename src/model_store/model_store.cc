#include "model_store/model_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/blob_digest.h"
#include "platform/file_descriptor.h"
#include "platform/mapped_file.h"
#include "platform/os_error.h"
#include "platform/output/new_file.h"

namespace kvcache {
namespace {

namespace fs = std::filesystem;

constexpr int kNameParts = 4;
constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr auto kPullTime = std::chrono::hours(24 * 14);  // that a stopped pull stays

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Calls use(part) for the parts of a file, of which each is read once and then given back.
template <typename Use>
Status ForEachPart(const MappedFile& file, const Use& use) {
  std::span<const std::byte> rest = file.bytes();
  while (!rest.empty()) {
    const auto part = rest.first(std::min(rest.size(), kCopyBytes));
    KVCACHE_RETURN_IF_ERROR(use(part));
    file.Drop(part);
    rest = rest.subspan(part.size());
  }
  return Status::Ok();
}

// Errors: kCancelled.
Result<std::string> DigestOf(const MappedFile& file, const std::function<bool()>& cancelled = {}) {
  Sha256 hash;
  KVCACHE_RETURN_IF_ERROR(ForEachPart(file, [&](std::span<const std::byte> part) -> Status {
    if (cancelled && cancelled()) return {StatusCode::kCancelled, "stopped"};
    hash.Add(part);
    return Status::Ok();
  }));
  return BlobDigest(hash.Finish());
}

// Makes a folder's entries durable.
Status SyncFolder(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) return OsError("open", path, errno);
  const int error = fsync(fd.get()) == 0 ? 0 : errno;
  return error == 0 || error == EINVAL ? Status::Ok() : OsError("write out", path, error);
}

bool HasSize(const std::string& path, std::uint64_t size) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error)) &&
         fs::file_size(path, error) == size && !error;
}

// Writes a file in parts: `write` gets the new file.
template <typename Write>
Status WriteNew(const std::string& path, std::uint64_t size, const Write& write) {
  std::error_code error;
  if (fs::is_symlink(path, error)) (void)fs::remove(path, error);  // never written through
  KVCACHE_ASSIGN_OR_RETURN(const auto file, NewFile::Create(path, size));
  KVCACHE_RETURN_IF_ERROR(write(*file));
  KVCACHE_RETURN_IF_ERROR(file->Commit());
  return SyncFolder(fs::path(path).parent_path());
}

void RemoveEmptyFolders(fs::path folder, int levels) {
  std::error_code error;
  for (; levels > 0 && fs::is_empty(folder, error) && !error; --levels) {
    if (!fs::remove(folder, error) || error) return;
    folder = folder.parent_path();
  }
}

std::vector<ManifestLayer> BlobsOf(const Manifest& manifest) {
  std::vector<ManifestLayer> blobs = manifest.layers;
  blobs.push_back(manifest.config);
  return blobs;
}

void AddDigests(const Manifest& manifest, std::set<std::string>* digests) {
  for (const ManifestLayer& blob : BlobsOf(manifest)) digests->insert(blob.digest);
}

}  // namespace

std::string ModelStore::ManifestPath(const ModelName& name) const {
  return StrCat(root_, "/manifests/", name.Path());
}

std::string ModelStore::PathOfDigest(std::string_view digest) const {
  std::string file(digest);
  std::replace(file.begin(), file.end(), ':', '-');
  return StrCat(root_, "/blobs/", file);
}

Status ModelStore::CheckInside(const std::string& path) const {
  std::error_code error;
  const std::string root = fs::weakly_canonical(root_, error);
  const std::string real = error ? "" : fs::weakly_canonical(path, error).string();
  if (error) return OsError("resolve", path, error.value());
  if (real.starts_with(root + "/")) return Status::Ok();
  return Corrupt(StrCat(path, " leads out of the store ", root_, " to ", real,
                        "; remove the link, or link the whole store"));
}

Status ModelStore::MakeFolder(StoreLock& lock, const std::string& path) const {
  KVCACHE_RETURN_IF_ERROR(CheckInside(path));
  return lock.MakeFolder(path);
}

Result<std::vector<ModelName>> ModelStore::List() const {
  std::vector<ModelName> names;
  const fs::path top = fs::path(root_) / "manifests";
  std::error_code error;
  if (!fs::exists(top, error)) return names;
  fs::recursive_directory_iterator it(top, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (it.depth() >= kNameParts) it.disable_recursion_pending();
    std::error_code ignored;
    if (it.depth() != kNameParts - 1 || !it->is_regular_file(ignored)) continue;
    const fs::path path = it->path().lexically_relative(top);
    auto part = path.begin();
    ModelName name{*part, *std::next(part), *std::next(part, 2), *std::next(part, 3)};
    const std::string text = StrCat(name.host, "/", name.space, "/", name.model, ":", name.tag);
    const auto parsed = ModelName::Parse(text);
    if (parsed.ok() && *parsed == name) names.push_back(std::move(name));
  }
  if (error) return OsError("list", top.string(), error.value());
  std::sort(names.begin(), names.end(),
            [](const ModelName& a, const ModelName& b) { return a.Path() < b.Path(); });
  return names;
}

Result<Manifest> ModelStore::Read(const ModelName& name) const {
  const std::string path = ManifestPath(name);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return NotFound(StrCat("no model '", name.Short(), "' in the store ", root_));
  }
  KVCACHE_RETURN_IF_ERROR(CheckInside(path));
  KVCACHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  auto manifest = ParseManifest({text, file.bytes().size()});
  if (!manifest.ok()) return std::move(manifest).TakeStatus().WithContext(path);
  return manifest;
}

Result<std::string> ModelStore::BlobPath(const ManifestLayer& layer) const {
  if (!IsBlobDigest(layer.digest)) {
    return InvalidArgument(StrCat(Quoted(layer.digest), " is not a digest"));
  }
  const std::string path = PathOfDigest(layer.digest);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return NotFound(StrCat("the blob ", path, " (", layer.media_type,
                           ") is missing; create or pull the model again"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckInside(path));
  if (!fs::is_regular_file(path, error)) return Corrupt(StrCat(path, " is not a regular file"));
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return OsError("read the size of", path, error.value());
  if (size != layer.size) {
    return Corrupt(StrCat(path, " has ", size, " bytes, its manifest says ", layer.size,
                          "; create or pull the model again"));
  }
  return path;
}

Result<std::string> ModelStore::ReadText(const ManifestLayer& layer, std::size_t max_bytes) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, BlobPath(layer));
  if (layer.size > max_bytes) {
    return Unsupported(
        StrCat(path, " has ", layer.size, " bytes of text; at most ", max_bytes, " are read"));
  }
  KVCACHE_RETURN_IF_ERROR(Verify(layer));
  KVCACHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

Status ModelStore::Verify(const ManifestLayer& layer,
                          const std::function<bool()>& cancelled) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, BlobPath(layer));
  KVCACHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(const std::string digest, DigestOf(file, cancelled));
  if (digest == layer.digest) return Status::Ok();
  return Corrupt(
      StrCat(path, " holds ", digest, "; it is damaged, create or pull the model again"));
}

bool ModelStore::Has(const ManifestLayer& layer, const std::function<bool()>& cancelled) const {
  return HasSize(PathOfDigest(layer.digest), layer.size) && Verify(layer, cancelled).ok();
}

std::uint64_t ModelStore::MissingBytes(const std::vector<ManifestLayer>& layers) const {
  std::uint64_t missing = 0;
  std::set<std::string> seen;
  for (const ManifestLayer& layer : layers) {
    const std::string path = PathOfDigest(layer.digest);
    if (!seen.insert(layer.digest).second || HasSize(path, layer.size)) continue;
    std::error_code error;
    const auto begun = fs::file_size(PartialBlob::PathOf(layer, path), error);
    const std::uint64_t left = layer.size - (error ? 0 : std::min(begun, layer.size));
    missing += std::min(left, std::numeric_limits<std::uint64_t>::max() - missing);
  }
  return missing;
}

Result<std::unique_ptr<PartialBlob>> ModelStore::OpenPartial(
    const ManifestLayer& layer, const std::function<bool()>& cancelled) const {
  const std::string path = PathOfDigest(layer.digest);
  const std::string folder = fs::path(path).parent_path();
  std::error_code error;
  fs::create_directories(root_, error);
  if (!error) KVCACHE_RETURN_IF_ERROR(CheckInside(folder));
  fs::create_directories(folder, error);
  if (error) return OsError("create", folder, error.value());
  return PartialBlob::Open(layer, path, cancelled);
}

bool ModelStore::HasPartOf(const std::vector<ManifestLayer>& layers) const {
  return std::any_of(layers.begin(), layers.end(), [&](const ManifestLayer& layer) {
    const std::string path = PathOfDigest(layer.digest);
    std::error_code ignored;
    return fs::exists(path, ignored) || fs::exists(PartialBlob::PathOf(layer, path), ignored);
  });
}

Result<std::unique_ptr<PullClaim>> ModelStore::Claim(const ModelName& name,
                                                     const std::vector<ManifestLayer>& blobs,
                                                     const std::function<bool()>& cancelled) const {
  KVCACHE_ASSIGN_OR_RETURN(auto claim, PullClaim::Take(root_, name, cancelled));
  KVCACHE_ASSIGN_OR_RETURN(const StoreLock lock, Lock(cancelled));
  KVCACHE_RETURN_IF_ERROR(claim->Write(blobs));
  (void)RemoveUnused(claim->old_blobs());  // what stays is in nobody's way
  return claim;
}

Result<StoreLock> ModelStore::Lock(const std::function<bool()>& cancelled) const {
  KVCACHE_ASSIGN_OR_RETURN(StoreLock lock, StoreLock::Take(root_, cancelled));
  RemoveOldPulls();
  TakeLeftovers(lock);
  return lock;
}

Result<std::set<std::string>> ModelStore::UsedDigests() const {
  KVCACHE_ASSIGN_OR_RETURN(std::set<std::string> used, PullClaim::Digests(root_));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<ModelName> names, List());
  for (const ModelName& name : names) {
    const auto manifest = Read(name);
    if (!manifest.ok()) return manifest.status();
    AddDigests(*manifest, &used);
  }
  return used;
}

Status ModelStore::RemoveUnused(const std::vector<ManifestLayer>& blobs) const {
  if (blobs.empty() || !CheckInside(StrCat(root_, "/blobs/x")).ok()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const std::set<std::string> used, UsedDigests());
  std::error_code error;
  for (const ManifestLayer& blob : blobs) {
    if (used.contains(blob.digest)) continue;
    const std::string path = PathOfDigest(blob.digest);
    fs::remove(path, error);
    if (error) return OsError("remove", path, error.value());
    fs::remove(PartialBlob::PathOf(blob, path), error);
  }
  return Status::Ok();
}

bool ModelStore::EndPull(const PullClaim::Listed& pull) const {
  if (!PullClaim::Remove(pull.path)) return false;
  (void)RemoveUnused(pull.blobs);
  return true;
}

void ModelStore::RemoveOldPulls() const {
  const auto end = fs::file_time_type::clock::now() - kPullTime;
  const auto pulls = PullClaim::List(root_);
  for (std::size_t i = 0; pulls.ok() && i < pulls->size(); ++i) {
    if ((*pulls)[i].written < end) (void)EndPull((*pulls)[i]);
  }
  if (CheckInside(StrCat(root_, "/blobs/x")).ok()) PartialBlob::RemoveOld(root_ + "/blobs", end);
}

void ModelStore::TakeLeftovers(StoreLock& lock) const {
  std::error_code ignored;
  fs::remove(StoreLock::ConvertedPath(root_), ignored);
  auto left = lock.Left();
  if (!left || !CheckInside(StrCat(root_, "/blobs/x")).ok()) return;
  const auto used = UsedDigests();
  if (!used.ok()) return;  // the unreadable manifest may name them
  std::map<std::string, std::string> unused;
  for (const std::string& digest : left->digests) {
    if (!used->contains(digest)) unused[digest] = PathOfDigest(digest);
  }
  std::erase_if(left->folders, [&](const auto& folder) { return !CheckInside(folder).ok(); });
  lock.TakeOver(unused, left->folders);
}

// Writes a blob that is missing or damaged. The old bytes of a damaged one are no one's: that it is written again is
// how a user repairs one.
template <typename Writer>
Status ModelStore::AddBlob(StoreLock& lock, const ManifestLayer& layer, const Writer& write) const {
  const std::string path = PathOfDigest(layer.digest);
  KVCACHE_RETURN_IF_ERROR(MakeFolder(lock, fs::path(path).parent_path()));
  if (Has(layer)) return Status::Ok();
  std::error_code ignored;
  const bool is_new = !fs::exists(fs::symlink_status(path, ignored));
  if (is_new) KVCACHE_RETURN_IF_ERROR(lock.AddBlob(layer.digest, path));
  return WriteNew(path, layer.size, write);
}

Result<ManifestLayer> ModelStore::AddBytes(StoreLock& lock, std::string_view type,
                                           std::string_view bytes) const {
  ManifestLayer layer{std::string(type), BlobDigest(Sha256Of(BytesOf(bytes))), bytes.size()};
  KVCACHE_RETURN_IF_ERROR(
      AddBlob(lock, layer, [&](NewFile& file) { return file.WriteAt(0, BytesOf(bytes)); }));
  return layer;
}

Result<ManifestLayer> ModelStore::AddFile(StoreLock& lock, std::string_view type,
                                          const std::string& path) const {
  KVCACHE_ASSIGN_OR_RETURN(const MappedFile source, MappedFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(std::string digest, DigestOf(source));
  ManifestLayer layer{std::string(type), std::move(digest), source.bytes().size()};
  const auto copy = [&](NewFile& file) -> Status {
    Sha256 hash;
    std::uint64_t offset = 0;
    KVCACHE_RETURN_IF_ERROR(ForEachPart(source, [&](std::span<const std::byte> part) {
      hash.Add(part);
      const std::uint64_t at = std::exchange(offset, offset + part.size());
      return file.WriteAt(at, part);
    }));
    if (BlobDigest(hash.Finish()) == layer.digest) return Status::Ok();
    return {StatusCode::kIo, StrCat(path, " changed while it was copied; start again")};
  };
  KVCACHE_RETURN_IF_ERROR(AddBlob(lock, layer, copy));
  return layer;
}

Status ModelStore::Write(StoreLock& lock, const ModelName& name, const Manifest& manifest) const {
  for (const ManifestLayer& layer : manifest.layers) {
    KVCACHE_RETURN_IF_ERROR(BlobPath(layer).status());
  }
  KVCACHE_RETURN_IF_ERROR(BlobPath(manifest.config).status());
  const std::string path = ManifestPath(name);
  const auto old = Read(name);
  KVCACHE_RETURN_IF_ERROR(MakeFolder(lock, fs::path(path).parent_path()));
  const std::string text = ManifestText(manifest);
  KVCACHE_RETURN_IF_ERROR(
      WriteNew(path, text.size(), [&](NewFile& file) { return file.WriteAt(0, BytesOf(text)); }));
  std::set<std::string> named;
  AddDigests(manifest, &named);
  lock.Keep(named);
  if (old.ok()) (void)RemoveUnused(BlobsOf(*old));  // the model is there, whatever stays besides
  return Status::Ok();
}

Status ModelStore::Remove(const StoreLock& /*lock*/, const ModelName& name) const {
  const auto manifest = Read(name);
  KVCACHE_ASSIGN_OR_RETURN(const auto pulls, PullClaim::List(root_));
  bool was_pulled = false;
  for (const PullClaim::Listed& pull : pulls) {
    if (pull.name != name.Path()) continue;
    was_pulled = EndPull(pull);
    if (!was_pulled) {
      return Unsupported(StrCat("'", name.Short(), "' is being pulled; stop that first"));
    }
  }
  if (manifest.status().code() == StatusCode::kNotFound) {
    return was_pulled ? Status::Ok() : manifest.status();
  }
  const std::string path = ManifestPath(name);
  KVCACHE_RETURN_IF_ERROR(CheckInside(path));
  std::error_code error;
  if (!fs::remove(path, error) || error) return OsError("remove", path, error.value());
  RemoveEmptyFolders(fs::path(path).parent_path(), kNameParts - 1);
  if (!manifest.ok()) return Status::Ok();  // damaged: what it named is unknown
  const auto used = UsedDigests();
  if (!used.ok()) {
    return Corrupt(StrCat("'", name.Short(), "' is removed, but its blobs stay, because ",
                          used.status().message()));
  }
  return RemoveUnused(BlobsOf(*manifest));
}

}  // namespace kvcache
