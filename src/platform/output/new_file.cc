#include "platform/output/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <random>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/os_error.h"
#include "platform/output/output_target.h"

namespace kvcache {
namespace {

constexpr int kMaxTries = 100;  // to find a name that nobody has

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// A name that nobody can guess, in the folder of `path`, since a rename cannot cross disks. It is
// short: `path` may have the longest name that the system takes.
std::string TemporaryName(const std::string& path) {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  return StrCat(FolderOf(path), "/.kvcache-", number);
}

// Refuses early what a rename would refuse at the end: in a sticky folder (/tmp) only the owner of
// a file or of the folder may replace it.
Status CheckSticky(const OutputTarget& target, const std::string& path) {
  struct stat folder {};
  if (!target.exists || stat(FolderOf(target.path).c_str(), &folder) != 0) return Status::Ok();
  const uid_t user = geteuid();
  const bool may =
      (folder.st_mode & S_ISVTX) == 0 || user == 0 || user == target.owner || user == folder.st_uid;
  return may ? Status::Ok() : OsError("replace", path, EPERM);
}

// Gives the file the owner and the mode of the file that it replaces. Only root gives a file away;
// where not even the group can be kept, the file's own group gets no access.
int TakeOver(int fd, const OutputTarget& target) {
  mode_t mode = target.mode;
  // The owner first: a change of owner clears bits.
  if (fchown(fd, target.owner, target.group) != 0) {
    if (errno != EPERM) return errno;
    if (fchown(fd, static_cast<uid_t>(-1), target.group) != 0) mode &= ~static_cast<mode_t>(070);
  }
  return fchmod(fd, mode) == 0 ? 0 : errno;
}

std::string LinkTo(int fd) {
  return StrCat("/proc/self/fd/", fd);
}

// A file without a name in the folder of `path`; not open where the system has none such.
FileDescriptor OpenNameless(const std::string& path, mode_t mode) {
  FileDescriptor fd(open(FolderOf(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
  if (fd.is_open() && access(LinkTo(fd.get()).c_str(), F_OK) != 0) {
    (void)fd.Close();  // it could never be given a name
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

Result<std::unique_ptr<NewFile>> NewFile::Create(const std::string& path, std::uint64_t size_bytes,
                                                 std::optional<mode_t> mode) {
  KVCACHE_ASSIGN_OR_RETURN(const OutputTarget target, ResolveOutput(path));
  if (target.exists && !target.regular) {
    return InvalidArgument(StrCat("cannot replace ", path, ": it is not a regular file"));
  }
  KVCACHE_RETURN_IF_ERROR(CheckSticky(target, path));
  std::unique_ptr<NewFile> file(new NewFile(path, target.path, size_bytes));
  KVCACHE_RETURN_IF_ERROR(file->Open(target, mode));
  const int error = Reserve(file->fd_.get(), size_bytes);
  if (error != 0) return OsError(StrCat("make room for ", size_bytes, " bytes in"), path, error);
  return file;
}

Status NewFile::Open(const OutputTarget& target, std::optional<mode_t> given) {
  const mode_t mode = given.value_or(target.exists ? target.mode & 0777 : 0666);
  fd_ = OpenNameless(target_, mode);
  for (int tries = 0; !fd_.is_open(); ++tries) {
    std::string name = TemporaryName(target_);
    fd_ = FileDescriptor(
        open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (fd_.is_open()) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST || tries == kMaxTries) {
      return OsError("create", path_, errno);
    }
  }
  int error = 0;
  if (given) {
    error = fchmod(fd_.get(), mode) == 0 ? 0 : errno;
  } else if (target.exists) {
    error = TakeOver(fd_.get(), target);
  }
  return error == 0 ? Status::Ok() : OsError("set the permissions of", path_, error);
}

NewFile::~NewFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status NewFile::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_bytes_ || bytes.size() > size_bytes_ - offset) {
    return InvalidArgument(StrCat(path_, ": ", bytes.size(), " bytes at ", offset,
                                  " exceed the file's ", size_bytes_));
  }
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return OsError(StrCat("write at ", offset, " to"), path_, errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return Status::Ok();
}

// Gives the file its name, or a nameless one a temporary name: a link cannot replace a file, a
// rename can.
Status NewFile::Name() {
  const auto link = [this](const std::string& name) {
    return linkat(AT_FDCWD, LinkTo(fd_.get()).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) ==
           0;
  };
  if (temporary_.empty() && link(target_)) return Status::Ok();
  for (int tries = 0; temporary_.empty(); ++tries) {
    std::string name = TemporaryName(target_);
    if (link(name)) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST || tries == kMaxTries) {
      return OsError("name", path_, errno);
    }
  }
  return Status::Ok();
}

Status NewFile::WriteOut() {
  return fdatasync(fd_.get()) == 0 ? Status::Ok() : OsError("write out", path_, errno);
}

Status NewFile::Commit() {
  if (!fd_.is_open()) return InvalidArgument(StrCat(path_, " is complete already"));
  KVCACHE_RETURN_IF_ERROR(WriteOut());
  KVCACHE_RETURN_IF_ERROR(Name());
  if (!temporary_.empty() && rename(temporary_.c_str(), target_.c_str()) != 0) {
    return OsError("rename to", path_, errno);
  }
  temporary_.clear();
  const int error = fd_.Close();
  return error == 0 ? Status::Ok() : OsError("close", path_, error);
}

}  // namespace kvcache
