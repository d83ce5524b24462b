#include "engine/packed/packed_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include "base/errors.h"
#include "base/fnv.h"
#include "base/strings.h"
#include "platform/os_error.h"
#include "platform/wall_clock.h"
#include "store/disk/store_directory.h"

namespace kvcache::packed {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".kvpanels";
constexpr std::string_view kTemporary = ".kvcache-";  // of NewFile, where files cannot be nameless
constexpr std::int64_t kOldSeconds = 24 * 3600;

struct FolderFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_s = 0;
};

bool EndsWith(const std::string& text, std::string_view end) {
  return text.ends_with(end);
}

// Returns the files in the folder, but for the one at `path`; removes old temporary ones.
std::vector<FolderFile> FilesBeside(const std::string& folder, const std::string& path) {
  std::vector<FolderFile> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info {};
    if (lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (name.starts_with(kTemporary) && info.st_mtim.tv_sec < WallClockSeconds() - kOldSeconds) {
      (void)unlink(it->path().c_str());
    }
    if (!EndsWith(name, kExtension) || it->path() == path) continue;
    files.push_back(
        {it->path().string(), static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec});
  }
  return files;
}

}  // namespace

std::string PathOf(const std::string& folder, const std::string& model) {
  std::error_code error;
  const fs::path real = fs::canonical(model, error);
  Fnv1a name;
  name.Add(std::string_view(error ? model : real.string()));
  return StrCat(folder, "/", HexText(name.sum()), kExtension);
}

void Touch(const std::string& path) {
  (void)utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
}

int Clear(const std::string& folder) {
  int removed = 0;
  for (const FolderFile& file : FilesBeside(folder, "")) {
    removed += unlink(file.path.c_str()) == 0 ? 1 : 0;
  }
  return removed;
}

Status MakeRoom(const std::string& folder, const std::string& path, std::uint64_t bytes,
                std::uint64_t budget) {
  KVCACHE_RETURN_IF_ERROR(
      store::PrepareStoreDirectory(folder, store::MissingDirectory::kMake).status());
  if (bytes > budget) {
    return OutOfMemory(StrCat("they take ", HumanBytes(static_cast<std::int64_t>(bytes)),
                              ", and all may take ",
                              HumanBytes(static_cast<std::int64_t>(budget))));
  }
  std::vector<FolderFile> files = FilesBeside(folder, path);
  std::ranges::sort(files, {}, &FolderFile::used_s);
  std::uint64_t total = bytes;
  for (const FolderFile& file : files) total += file.bytes;
  for (const FolderFile& file : files) {
    if (total <= budget) break;
    if (unlink(file.path.c_str()) != 0 && errno != ENOENT) {
      return OsError("remove", file.path, errno);
    }
    total -= file.bytes;
  }
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return OsError("read the free space of", folder, errno);
  const std::uint64_t available = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (available / 2 < bytes) {
    return OutOfMemory(StrCat("they take ", HumanBytes(static_cast<std::int64_t>(bytes)),
                              ", and the disk of ", folder, " has ",
                              HumanBytes(static_cast<std::int64_t>(available)),
                              " left: as much as they take would not stay free"));
  }
  return Status::Ok();
}

}  // namespace kvcache::packed
