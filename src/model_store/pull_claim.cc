#include "model_store/pull_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/parse_number.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "model_store/blob_digest.h"
#include "platform/file_lock.h"
#include "platform/os_error.h"

namespace kvcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListPrefix = ".kvcache-pull-";
constexpr std::string_view kListSuffix = ".list";
constexpr std::string_view kNameMark = "name ";

std::string ListPathOf(const std::string& root, const std::string& name) {
  const std::string digest = BlobDigest(Sha256Of(std::as_bytes(std::span(name))));
  return StrCat(root, "/", kListPrefix, digest.substr(digest.find(':') + 1, 32), kListSuffix);
}

// Reads the lines that are well formed; a killed writer may have left half of one.
Result<PullClaim::Listed> ReadList(const std::string& path) {
  PullClaim::Listed listed{.path = path};
  std::error_code error;
  listed.written = fs::last_write_time(path, error);
  if (error) return OsError("read the time of", path, error.value());
  if (!fs::is_regular_file(path, error)) return listed;
  std::ifstream file(path);
  if (!file) return OsError("open", path, errno);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kNameMark)) listed.name = line.substr(kNameMark.size());
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || !IsBlobDigest(line.substr(0, space))) continue;
    const auto size = ParseNumber<std::uint64_t>(std::string_view(line).substr(space + 1));
    if (size) listed.blobs.push_back({"", line.substr(0, space), *size});
  }
  return listed;
}

Status WriteAll(int fd, const std::string& path, std::string_view text) {
  if (ftruncate(fd, 0) != 0) return OsError("cut", path, errno);
  off_t at = 0;
  while (!text.empty()) {
    const ssize_t count = pwrite(fd, text.data(), text.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return OsError("write to", path, errno);
    at += count;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<PullClaim>> PullClaim::Take(const std::string& root, const ModelName& name,
                                                   const std::function<bool()>& cancelled) {
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return OsError("create", root, error.value());
  const std::string full_name = name.Path();
  std::unique_ptr<PullClaim> claim(new PullClaim(ListPathOf(root, full_name), full_name));
  const std::string& path = claim->path_;
  while (true) {
    FileDescriptor fd(
        open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
    if (!fd.is_open()) return OsError("open", path, errno);
    KVCACHE_RETURN_IF_ERROR(WaitForFileLock(fd.get(), path, cancelled));
    if (!IsFileOf(path, fd.get())) continue;  // the holder before has removed it
    claim->fd_ = std::move(fd);
    break;
  }
  KVCACHE_ASSIGN_OR_RETURN(Listed listed, ReadList(path));
  claim->has_blobs_ = !listed.blobs.empty();
  claim->old_blobs_ = std::move(listed.blobs);
  return claim;
}

PullClaim::~PullClaim() {
  if (!has_blobs_) Finish();
}

Status PullClaim::Write(const std::vector<ManifestLayer>& blobs) {
  std::string text = StrCat(kNameMark, name_, "\n");
  for (const ManifestLayer& blob : blobs) text += StrCat(blob.digest, " ", blob.size, "\n");
  KVCACHE_RETURN_IF_ERROR(WriteAll(fd_.get(), path_, text));
  has_blobs_ = !blobs.empty();
  return Status::Ok();
}

void PullClaim::Finish() {
  if (fd_.is_open() && IsFileOf(path_, fd_.get())) (void)unlink(path_.c_str());
  (void)fd_.Close();
}

Result<std::vector<PullClaim::Listed>> PullClaim::List(const std::string& root) {
  std::vector<Listed> lists;
  std::error_code error;
  fs::directory_iterator it(root, error);
  if (error == std::errc::no_such_file_or_directory) return lists;
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kListPrefix) || !name.ends_with(kListSuffix)) continue;
    auto listed = ReadList(it->path().string());
    if (listed.status().code() == StatusCode::kNotFound) continue;  // it has just ended
    if (!listed.ok()) return std::move(listed).TakeStatus();
    lists.push_back(std::move(*listed));
  }
  if (error) return OsError("list", root, error.value());
  return lists;
}

Result<std::set<std::string>> PullClaim::Digests(const std::string& root) {
  std::set<std::string> digests;
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Listed> lists, List(root));
  for (const Listed& listed : lists) {
    for (const ManifestLayer& blob : listed.blobs) digests.insert(blob.digest);
  }
  return digests;
}

bool PullClaim::Remove(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.is_open()) return errno == ENOENT;
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
  return !IsFileOf(path, fd.get()) || unlink(path.c_str()) == 0;
}

}  // namespace kvcache
