#include "model_store/partial_blob.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/blob_digest.h"
#include "platform/file_lock.h"
#include "platform/os_error.h"

namespace kvcache {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::string_view kPartialPrefix = ".kvcache-";
constexpr std::string_view kPartialSuffix = ".partial";

Status Cancelled() {
  return {StatusCode::kCancelled, "stopped"};
}

Status SyncFolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  const FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) return OsError("open", folder, errno);
  const int error = fsync(fd.get()) == 0 ? 0 : errno;
  return error == 0 || error == EINVAL ? Status::Ok() : OsError("write out", folder, error);
}

}  // namespace

Result<std::unique_ptr<PartialBlob>> PartialBlob::Open(const ManifestLayer& layer,
                                                       const std::string& blob_path,
                                                       const std::function<bool()>& cancelled) {
  std::unique_ptr<PartialBlob> partial(new PartialBlob(layer, blob_path));
  partial->path_ = PathOf(layer, blob_path);
  KVCACHE_RETURN_IF_ERROR(partial->Lock(cancelled));
  KVCACHE_RETURN_IF_ERROR(partial->HashOld(cancelled));
  return partial;
}

PartialBlob::~PartialBlob() {
  const bool is_empty = is_locked_ && size_ == 0 && IsFileOf(path_, fd_.get());
  if (is_empty) (void)unlink(path_.c_str());
}

std::string PartialBlob::PathOf(const ManifestLayer& layer, const std::string& blob_path) {
  const std::string hex = layer.digest.substr(layer.digest.find(':') + 1);
  const std::string name = StrCat(kPartialPrefix, hex, "-", layer.size, kPartialSuffix);
  return (fs::path(blob_path).parent_path() / name).string();
}

void PartialBlob::RemoveOld(const std::string& folder, fs::file_time_type time) {
  std::error_code error;
  std::vector<std::string> old;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPartialPrefix) || !name.ends_with(kPartialSuffix)) continue;
    std::error_code ignored;
    const auto written = fs::last_write_time(it->path(), ignored);
    if (!ignored && written < time) old.push_back(it->path().string());
  }
  for (const std::string& path : old) {
    const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const bool is_free = fd.is_open() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (is_free && IsFileOf(path, fd.get())) (void)unlink(path.c_str());
  }
}

Status PartialBlob::Lock(const std::function<bool()>& cancelled) {
  while (true) {
    fd_ = FileDescriptor(
        open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
    if (!fd_.is_open()) return OsError("open", path_, errno);
    KVCACHE_RETURN_IF_ERROR(WaitForFileLock(fd_.get(), path_, cancelled));
    // The holder before may have given the file its name, or removed it.
    if (IsFileOf(path_, fd_.get())) break;
  }
  is_locked_ = true;
  struct stat found {};
  if (fstat(fd_.get(), &found) != 0) return OsError("read the size of", path_, errno);
  if (!S_ISREG(found.st_mode)) return Corrupt(StrCat(path_, " is not a regular file"));
  size_ = static_cast<std::uint64_t>(found.st_size);
  return Status::Ok();
}

Status PartialBlob::HashOld(const std::function<bool()>& cancelled) {
  if (size_ > layer_.size) return Restart();
  hash_.emplace();
  std::vector<std::byte> buffer(kReadBytes);
  for (std::uint64_t at = 0; at < size_;) {
    if (cancelled && cancelled()) return Cancelled();
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(size_ - at, kReadBytes));
    const ssize_t got = pread(fd_.get(), buffer.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OsError("read", path_, errno);
    if (got == 0) return Restart();  // somebody cut the file
    hash_->Add(std::span(buffer).first(static_cast<std::size_t>(got)));
    at += static_cast<std::uint64_t>(got);
  }
  return Status::Ok();
}

Status PartialBlob::Restart() {
  if (ftruncate(fd_.get(), 0) != 0) return OsError("cut", path_, errno);
  size_ = 0;
  hash_.emplace();
  return Status::Ok();
}

Status PartialBlob::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > layer_.size - size_) {
    return Corrupt(StrCat("more bytes come than the ", layer_.size, " of ", layer_.digest));
  }
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return OsError("write to", path_, errno);
    const auto written = bytes.first(static_cast<std::size_t>(count));
    hash_->Add(written);
    size_ += written.size();
    bytes = bytes.subspan(written.size());
  }
  return Status::Ok();
}

Status PartialBlob::Remove() {
  return unlink(path_.c_str()) == 0 ? Status::Ok() : OsError("remove", path_, errno);
}

Status PartialBlob::Commit() {
  if (size_ != layer_.size) {
    return Corrupt(StrCat(size_, " bytes came of the ", layer_.size, " of ", layer_.digest));
  }
  const std::string digest = BlobDigest(hash_->Finish());
  hash_.emplace();
  if (digest != layer_.digest) {
    KVCACHE_RETURN_IF_ERROR(Restart());
    return Corrupt(StrCat("the bytes have the digest ", digest, ", not ", layer_.digest));
  }
  if (fsync(fd_.get()) != 0 && errno != EINVAL) return OsError("write out", path_, errno);
  if (rename(path_.c_str(), blob_path_.c_str()) != 0) return OsError("rename", path_, errno);
  return SyncFolderOf(blob_path_);
}

}  // namespace kvcache
