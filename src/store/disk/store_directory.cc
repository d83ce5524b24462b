#include "store/disk/store_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/os_error.h"
#include "store/disk/file_lock.h"

namespace kvcache::store {
namespace {

namespace fs = std::filesystem;

// Makes one directory after the other, so that each is private from the beginning.
Status MakeDirectories(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return Status::Ok();
  if (path.has_parent_path() && path.parent_path() != path) {
    KVCACHE_RETURN_IF_ERROR(MakeDirectories(path.parent_path()));
  }
  if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return OsError("make the directory", path.string(), errno);
  }
  return Status::Ok();
}

}  // namespace

Result<std::string> PrepareStoreDirectory(const std::string& path, MissingDirectory missing) {
  if (path.empty()) return InvalidArgument("the store's directory has no name");
  try {
    if (missing == MissingDirectory::kMake) KVCACHE_RETURN_IF_ERROR(MakeDirectories(path));
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return OsError("open the directory", path, errno);
    if (!S_ISDIR(info.st_mode)) return InvalidArgument(StrCat(path, " is not a directory"));
    if (info.st_uid != geteuid()) {
      return InvalidArgument(
          StrCat("the directory ", path, " belongs to another user; a store must be one's own"));
    }
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      return InvalidArgument(StrCat("other users can write to the directory ", path,
                                    "; take that right away (chmod go-w), or give another one"));
    }
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error) return OsError("open the directory", path, error.value());
    return real.string();
  } catch (const std::exception&) {
    return OutOfMemory("no memory for the path of a store");
  }
}

Result<DirectoryLock> DirectoryLock::Take(const std::string& directory,
                                          std::chrono::milliseconds max_wait) {
  const std::string path = directory + "/lock";
  FileDescriptor fd(
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!fd.is_open()) return OsError("write to the store's directory:", path, errno);
  const int error = LockOpenFile(fd.get(), max_wait);
  if (error == 0) return DirectoryLock(std::move(fd));
  if (error != EWOULDBLOCK) return OsError("lock", path, error);
  return Status(StatusCode::kIo, StrCat("the store cannot be opened: ", LockHolder(path), " keeps ",
                                        path, " locked"));
}

}  // namespace kvcache::store
