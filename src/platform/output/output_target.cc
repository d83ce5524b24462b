#include "platform/output/output_target.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "platform/os_error.h"

namespace kvcache {
namespace {

constexpr int kMaxLinks = 40;  // as Linux has it

}  // namespace

Result<OutputTarget> ResolveOutput(const std::string& path) {
  namespace fs = std::filesystem;
  OutputTarget target{.path = path};
  struct stat info {};
  // A device or pipe is opened by the name that was given: "/dev/stdout" leads through a link whose
  // text ("pipe:[123]") is no path.
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    if (access(path.c_str(), W_OK) != 0) return OsError("write to", path, errno);
    target.exists = true;
    return target;
  }
  for (int links = 0;; ++links) {
    if (lstat(target.path.c_str(), &info) != 0) {
      if (errno != ENOENT) return OsError("create", path, errno);
      return target;  // whether its directory exists is found when the file is created
    }
    if (!S_ISLNK(info.st_mode)) break;
    if (links == kMaxLinks) return OsError("create", path, ELOOP);
    std::error_code error;
    const fs::path link = fs::read_symlink(target.path, error);
    if (error) return OsError("read the link", path, error.value());
    target.path = (fs::path(target.path).parent_path() / link).string();
  }
  if (S_ISDIR(info.st_mode)) return OsError("create", path, EISDIR);
  if (access(target.path.c_str(), W_OK) != 0) return OsError("write to", path, errno);
  target.exists = true;
  target.regular = S_ISREG(info.st_mode);
  target.mode = info.st_mode & 07777;
  target.owner = info.st_uid;
  target.group = info.st_gid;
  return target;
}

}  // namespace kvcache
