#include "model_store/store_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/strings.h"
#include "model_store/blob_digest.h"
#include "model_store/pull_claim.h"
#include "platform/file_lock.h"
#include "platform/os_error.h"

namespace kvcache {
namespace {

constexpr int kMaxRetries = 100;
constexpr std::string_view kFolder = "folder ";

}  // namespace

Result<StoreLock> StoreLock::Take(const std::string& root, const std::function<bool()>& cancelled) {
  for (int tries = 0;; ++tries) {
    StoreLock lock(root);
    KVCACHE_RETURN_IF_ERROR(lock.MakeFolder(root));
    lock.fd_ = FileDescriptor(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock.fd_.is_open()) return OsError("open", root, errno);
    KVCACHE_RETURN_IF_ERROR(WaitForFileLock(lock.fd_.get(), root, cancelled));
    // The holder before may have removed the folder that it had made.
    if (IsFileOf(root, lock.fd_.get())) return lock;
    lock.folders_.clear();
    if (tries == kMaxRetries) return OsError("lock", root, ESTALE);
  }
}

StoreLock::StoreLock(StoreLock&& other) noexcept
    : root_(std::move(other.root_)),
      fd_(std::move(other.fd_)),
      owns_list_(std::exchange(other.owns_list_, false)),
      folders_(std::move(other.folders_)),
      blobs_(std::move(other.blobs_)) {}

StoreLock::~StoreLock() {
  RemoveRest();
}

std::string StoreLock::ConvertedPath(const std::string& root) {
  return root + "/.kvcache-create.gguf";
}

std::string StoreLock::ListPath() const {
  return root_ + "/.kvcache-create.list";
}

Status StoreLock::MakeFolder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> missing;
  for (fs::path folder = path; !folder.empty() && !fs::exists(folder, error);
       folder = folder.parent_path()) {
    missing.push_back(folder.string());
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    folders_.push_back(*folder);
    if (!folder->starts_with(root_ + "/")) continue;
    KVCACHE_RETURN_IF_ERROR(Note(StrCat(kFolder, folder->substr(root_.size() + 1))));
  }
  fs::create_directories(path, error);
  return error ? OsError("create", path, error.value()) : Status::Ok();
}

Status StoreLock::AddBlob(const std::string& digest, const std::string& path) {
  KVCACHE_RETURN_IF_ERROR(Note(digest));
  blobs_[digest] = path;
  return Status::Ok();
}

// Appends a line to the list.
Status StoreLock::Note(const std::string& text) {
  const std::string list = ListPath();
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  const FileDescriptor fd(open(list.c_str(), flags, 0644));
  if (!fd.is_open()) return OsError("create", list, errno);
  owns_list_ = true;
  const std::string line = StrCat(text, "\n");
  std::size_t written = 0;
  int error = 0;
  while (error == 0 && written < line.size()) {
    const ssize_t count = write(fd.get(), line.data() + written, line.size() - written);
    error = count < 0 ? errno : 0;
    written += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return error == 0 ? Status::Ok() : OsError("write to", list, error);
}

void StoreLock::Keep(const std::set<std::string>& digests) {
  std::erase_if(blobs_, [&](const auto& blob) { return digests.contains(blob.first); });
  RemoveRest();
}

void StoreLock::RemoveRest() {
  // A pull may have counted on a blob, or fetched it meanwhile.
  const Result<std::set<std::string>> claimed =
      blobs_.empty() ? std::set<std::string>() : PullClaim::Digests(root_);
  std::error_code ignored;
  for (const auto& [digest, path] : blobs_) {
    if (claimed.ok() && !claimed->contains(digest)) std::filesystem::remove(path, ignored);
  }
  blobs_.clear();
  // The list is removed before its folder.
  if (std::exchange(owns_list_, false)) (void)unlink(ListPath().c_str());
  for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder) {
    (void)rmdir(folder->c_str());  // refuses one that has something in it
  }
  folders_.clear();
}

void StoreLock::TakeOver(const std::map<std::string, std::string>& blobs,
                         const std::vector<std::string>& folders) {
  owns_list_ = true;
  blobs_.insert(blobs.begin(), blobs.end());
  folders_.insert(folders_.end(), folders.begin(), folders.end());
}

std::optional<StoreLock::Leftovers> StoreLock::Left() const {
  std::ifstream file(ListPath());
  if (!file) return std::nullopt;
  Leftovers left;
  for (std::string line; std::getline(file, line);) {
    if (IsBlobDigest(line)) left.digests.push_back(line);
    if (line.starts_with(kFolder)) {
      left.folders.push_back(StrCat(root_, "/", line.substr(kFolder.size())));
    }
  }
  return left;
}

}  // namespace kvcache
