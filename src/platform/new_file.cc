#include "platform/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/strings.h"
#include "platform/os_error.h"

namespace kvcache {
namespace {

// Unique among processes and within this one; beside `path`, since a rename cannot cross disks.
std::string TemporaryName(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return StrCat(path, ".tmp-", getpid(), "-", counter.fetch_add(1));
}

// 0 or an errno value.
int Reserve(int fd, std::uint64_t size_bytes) {
  const auto size = static_cast<off_t>(size_bytes);
  if (size == 0 || fallocate(fd, 0, 0, size) == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return ftruncate(fd, size) == 0 ? 0 : errno;
}

}  // namespace

Result<std::unique_ptr<NewFile>> NewFile::Create(const std::string& path,
                                                 std::uint64_t size_bytes) {
  std::string temporary = TemporaryName(path);
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return OsError("create", path, errno);
  std::unique_ptr<NewFile> file(new NewFile(path, std::move(temporary), fd, size_bytes));
  const int error = Reserve(fd, size_bytes);
  if (error != 0) return OsError(StrCat("make room for ", size_bytes, " bytes in"), path, error);
  return file;
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Status NewFile::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_bytes_ || bytes.size() > size_bytes_ - offset) {
    return {StatusCode::kInvalidArgument, StrCat(path_, ": ", bytes.size(), " bytes at ", offset,
                                                 " exceed the file's ", size_bytes_)};
  }
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return OsError(StrCat("write at ", offset, " to"), path_, errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return Status::Ok();
}

Status NewFile::Commit() {
  if (fd_ < 0) return {StatusCode::kInvalidArgument, StrCat(path_, " is complete already")};
  if (fdatasync(fd_) != 0) return OsError("write out", path_, errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return OsError("rename to", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return OsError("close", path_, errno);
  return Status::Ok();
}

}  // namespace kvcache
