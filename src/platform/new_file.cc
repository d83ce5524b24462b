#include "platform/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <utility>

#include "base/strings.h"
#include "platform/os_error.h"
#include "platform/output_target.h"

namespace kvcache {
namespace {

constexpr int kMostTries = 100;  // to find a name that nobody has

// A name that nobody can guess, beside `path`, since a rename cannot cross disks.
std::string TemporaryName(const std::string& path) {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  return StrCat(path, ".tmp-", number);
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string LinkTo(int fd) {
  return StrCat("/proc/self/fd/", fd);
}

// A file without a name in the folder of `path`; -1 where the system has none such.
int OpenNameless(const std::string& path, mode_t mode) {
  const int fd = open(FolderOf(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
  if (fd >= 0 && access(LinkTo(fd).c_str(), F_OK) != 0) {  // it could never be given a name
    close(fd);
    return -1;
  }
  return fd;
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
  KVCACHE_ASSIGN_OR_RETURN(const OutputTarget target, ResolveOutput(path));
  if (target.exists && !target.regular) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("cannot replace ", path, ": it is not a regular file"));
  }
  std::unique_ptr<NewFile> file(new NewFile(path, target.path, size_bytes));
  KVCACHE_RETURN_IF_ERROR(file->Open(target));
  const int error = Reserve(file->fd_, size_bytes);
  if (error != 0) return OsError(StrCat("make room for ", size_bytes, " bytes in"), path, error);
  return file;
}

Status NewFile::Open(const OutputTarget& target) {
  const mode_t mode = target.exists ? target.mode & 0777 : 0666;
  fd_ = OpenNameless(target_, mode);
  for (int tries = 0; fd_ < 0; ++tries) {
    std::string name = TemporaryName(target_);
    fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd_ >= 0) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST || tries == kMostTries) {
      return OsError("create", path_, errno);
    }
  }
  if (!target.exists) return Status::Ok();
  // The owner first: a change of owner clears bits. Only root may give a file away.
  if (fchown(fd_, target.owner, target.group) != 0 && errno != EPERM) {
    return OsError("keep the owner of", path_, errno);
  }
  if (fchmod(fd_, target.mode) != 0) return OsError("keep the permissions of", path_, errno);
  return Status::Ok();
}

NewFile::~NewFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
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

// Gives a nameless file a temporary name: a link cannot replace a file, a rename can.
Status NewFile::Name() {
  for (int tries = 0; temporary_.empty(); ++tries) {
    std::string name = TemporaryName(target_);
    if (linkat(AT_FDCWD, LinkTo(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST || tries == kMostTries) {
      return OsError("name", path_, errno);
    }
  }
  return Status::Ok();
}

Status NewFile::Commit() {
  if (fd_ < 0) return {StatusCode::kInvalidArgument, StrCat(path_, " is complete already")};
  if (fdatasync(fd_) != 0) return OsError("write out", path_, errno);
  KVCACHE_RETURN_IF_ERROR(Name());
  if (rename(temporary_.c_str(), target_.c_str()) != 0) return OsError("rename to", path_, errno);
  temporary_.clear();
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return OsError("close", path_, errno);
  return Status::Ok();
}

}  // namespace kvcache
