#include "engine/packed/packed_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fnv.h"
#include "base/strings.h"
#include "engine/packed/packed_file.h"
#include "engine/packed/packed_format.h"
#include "engine/packed/packed_writer.h"
#include "platform/file_descriptor.h"
#include "platform/os_error.h"
#include "platform/wall_clock.h"
#include "store/disk/store_directory.h"

namespace kvcache::packed {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".kvpanels";
constexpr std::string_view kTemporary = ".kvcache-";  // of NewFile, where files cannot be nameless
constexpr std::int64_t kDaySeconds = 24 * 3600;

struct FolderFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_s = 0;
  bool is_in_use = false;
  bool is_gone = false;  // its model is
};

bool EndsWith(const std::string& text, std::string_view end) {
  return text.ends_with(end);
}

std::string Human(std::uint64_t bytes) {
  return HumanBytes(static_cast<std::int64_t>(bytes));
}

// Says who needs the file.
void Describe(FolderFile& file) {
  const FileDescriptor fd(open(file.path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd.is_open()) return;
  file.is_in_use = IsInUse(fd.get());
  const auto model = ReadModelPath(SourceOf(fd.get(), file.bytes));
  file.is_gone = model.ok() && !model->empty() && IsGone(*model);
}

// Returns one's own files in the folder, but for the one at `path`; removes old temporary ones.
std::vector<FolderFile> FilesBeside(const std::string& folder, const std::string& path) {
  std::vector<FolderFile> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info {};
    if (lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (info.st_uid != geteuid()) continue;
    if (name.starts_with(kTemporary) && info.st_mtim.tv_sec < WallClockSeconds() - kDaySeconds) {
      (void)unlink(it->path().c_str());
    }
    if (!EndsWith(name, kExtension) || it->path() == path) continue;
    FolderFile file{it->path().string(), static_cast<std::uint64_t>(info.st_size),
                    info.st_mtim.tv_sec};
    Describe(file);
    files.push_back(std::move(file));
  }
  return files;
}

// Returns the files that go, so that a new one of `bytes` bytes has room. Models that are used in turns do not remove
// each other's files.
Result<std::vector<FolderFile>> ChooseEvicted(std::vector<FolderFile> files, std::uint64_t bytes,
                                              std::uint64_t budget) {
  std::uint64_t total = bytes;
  for (const FolderFile& file : files) total += file.bytes;
  std::erase_if(files, [](const FolderFile& file) {
    return file.is_in_use || file.used_s > WallClockSeconds() - kDaySeconds;
  });
  std::ranges::sort(files, {}, &FolderFile::used_s);
  std::vector<FolderFile> evicted;
  for (FolderFile& file : files) {
    if (total <= budget) break;
    total -= file.bytes;
    evicted.push_back(std::move(file));
  }
  if (total <= budget) return evicted;
  const std::string others =
      total > bytes
          ? StrCat("those of models that were used within a day take ", Human(total - bytes), ", ")
          : "";
  return OutOfMemory(StrCat("they take ", Human(bytes), ", ", others, "and all may take ",
                            Human(budget), " (--packed-budget)"));
}

}  // namespace

std::string RealPath(const std::string& model) {
  std::error_code error;
  const fs::path real = fs::canonical(model, error);
  return error ? model : real.string();
}

std::string NameOf(const std::string& model) {
  Fnv1a name;
  name.Add(std::string_view(RealPath(model)));
  return HexText(name.sum());
}

std::string PathOf(const std::string& folder, const std::string& model, std::uint64_t layout) {
  return StrCat(folder, "/", NameOf(model), "-", kVersion, "-", layout, kExtension);
}

int Clear(const std::string& folder, const std::string& name) {
  int removed = 0;
  for (const FolderFile& file : FilesBeside(folder, "")) {
    if (!fs::path(file.path).filename().string().starts_with(name)) continue;
    removed += unlink(file.path.c_str()) == 0 ? 1 : 0;
  }
  return removed;
}

Status MakeRoom(const std::string& folder, const std::string& path, std::uint64_t bytes,
                std::uint64_t budget) {
  KVCACHE_RETURN_IF_ERROR(
      store::PrepareStoreDirectory(folder, store::MissingDirectory::kMake).status());
  std::vector<FolderFile> files = FilesBeside(folder, path);
  std::erase_if(
      files, [](const FolderFile& file) { return file.is_gone && unlink(file.path.c_str()) == 0; });
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<FolderFile> evicted,
                           ChooseEvicted(std::move(files), bytes, budget));
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return OsError("read the free space of", folder, errno);
  std::uint64_t available = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  for (const FolderFile& file : evicted) available += file.bytes;
  if (available / 2 < bytes) {
    return OutOfMemory(StrCat("they take ", Human(bytes), ", and the disk of ", folder, " has ",
                              Human(available), " left: as much as they take would not stay free"));
  }
  for (const FolderFile& file : evicted) {
    if (unlink(file.path.c_str()) != 0 && errno != ENOENT) {
      return OsError("remove", file.path, errno);
    }
  }
  return Status::Ok();
}

}  // namespace kvcache::packed
