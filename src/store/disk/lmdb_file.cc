#include "store/disk/lmdb_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/strings.h"
#include "platform/address_space.h"
#include "platform/file_descriptor.h"
#include "platform/os_error.h"
#include "store/disk/file_lock.h"
#include "store/disk/lmdb_calls.h"
#include "store/disk/lmdb_check.h"

namespace kvcache::store {
namespace {

constexpr unsigned kReaders = 510;       // transactions at once, of all processes
constexpr off_t kLockFileBytes = 40960;  // of so many readers
constexpr std::int64_t kFirstMapBytes = std::int64_t{64} << 20;  // if the process may not map much
constexpr std::int64_t kFirstMapShare = 4;  // of what it may map: one part in four

FileDescriptor OpenFile(const std::string& path, int flags) {
  return FileDescriptor(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
}

std::int64_t SizeOfFile(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? static_cast<std::int64_t>(info.st_size) : 0;
}

// LMDB maps the file of locks, and a map of a file without its blocks ends the process when the disk is
// full.
Status ReserveLockFile(const std::string& path) {
  const FileDescriptor file = OpenFile(path, O_RDWR | O_CREAT);
  if (!file.is_open()) return OsError("write", path, errno);
  if (SizeOfFile(path) >= kLockFileBytes) return Status::Ok();
  const int error = posix_fallocate(file.get(), 0, kLockFileBytes);
  return error == 0 ? Status::Ok() : OsError("write", path, error);
}

// Checks what mdb_env_open itself reads. The last pages of a file may have been reserved and never
// written; a map must not end before them.
Status CheckBeforeOpening(const std::string& path) {
  const FileDescriptor file = OpenFile(path, O_RDWR);
  if (!file.is_open()) return OsError("open", path, errno);
  const std::int64_t size = SizeOfFile(path);
  if (size == 0) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const LmdbMeta meta, CheckLmdbMeta(file.get()));
  const auto min = static_cast<off_t>((meta.last_page + 1) * meta.page_bytes);
  if (size >= min) return Status::Ok();
  const int error = posix_fallocate(file.get(), 0, min);
  return error == 0 ? Status::Ok() : OsError("write", path, error);
}

// A process that gave the file's name to a copy may have been killed meanwhile (ReplaceLmdbFile), or while it
// wrote the copy. The directory's lock says that none does now.
void FinishReplacement(const std::string& path, const std::string& lock_file) {
  const std::string copy = path + kCopySuffix;
  if (access(path.c_str(), F_OK) == 0 || errno != ENOENT) {
    (void)unlink(copy.c_str());
    return;
  }
  (void)unlink(lock_file.c_str());  // of another file
  (void)rename(copy.c_str(), path.c_str());
}

// LMDB calls a write that ended early, as the one that fills a disk, an error of input and output.
bool IsFull(const std::string& directory) {
  constexpr std::uint64_t kMinFree = std::uint64_t{64} << 10;
  struct statvfs info {};
  return statvfs(directory.c_str(), &info) == 0 && info.f_bavail * info.f_frsize < kMinFree;
}

// Code that was left in the middle would continue as if a check of LMDB had succeeded, or end the process.
void OnFailedAssertion(MDB_env* /*env*/, const char* /*text*/) {
  LeaveGuarded();
}

// Returns a number of LMDB.
int OpenMapped(const std::string& path, std::int64_t map_bytes, MDB_env*& env) {
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  int error = mdb_env_create(&env);
  if (error != 0) return error;
  (void)mdb_env_set_assert(env, OnFailedAssertion);
  error = mdb_env_set_maxdbs(env, 3);
  if (error == 0) error = mdb_env_set_maxreaders(env, kReaders);
  if (error == 0)
    error = mdb_env_set_mapsize(env, static_cast<std::size_t>(map_bytes / page * page));
  // A commit writes the pages to the disk before it names them. The name itself may reach the disk
  // later, so a loss of power can undo the last commit and nothing else.
  if (error == 0) {
    error = Guarded([&] {
      return mdb_env_open(env, path.c_str(), MDB_NOSUBDIR | MDB_NOTLS | MDB_NOMETASYNC,
                          S_IRUSR | S_IWUSR);
    });
  }
  if (error != 0) mdb_env_close(std::exchange(env, nullptr));
  return error;
}

}  // namespace

Result<MDB_env*> OpenLmdbFile(const std::string& directory, std::int64_t max_map_bytes) {
  const std::string path = directory + kStoreFile;
  FinishReplacement(path, directory + kStoreLockFile);
  if (access(path.c_str(), F_OK) == 0 || errno != ENOENT) {
    KVCACHE_RETURN_IF_ERROR(CheckBeforeOpening(path));
  }
  KVCACHE_RETURN_IF_ERROR(ReserveLockFile(directory + kStoreLockFile));
  // A file that is larger than the map needs free pages beyond its end, even to remove objects.
  const std::int64_t size = SizeOfFile(path);
  const std::int64_t needed = size + size / 8 + (1 << 20);
  const std::int64_t max = size > max_map_bytes ? needed : max_map_bytes;
  const std::int64_t min = std::min(needed, max);
  std::int64_t map_bytes = max;
  if (const auto left = AddressSpaceLeft()) {
    map_bytes = std::clamp(std::min(kFirstMapBytes, *left / kFirstMapShare), min, max);
  }
  for (;;) {
    MDB_env* env = nullptr;
    const int error = OpenMapped(path, map_bytes, env);
    if (error == 0) return env;
    if (error == ENOMEM && map_bytes > min) {
      map_bytes = std::max(min, map_bytes / 2);
      continue;
    }
    Status status = LmdbError("open", directory, error);
    // The meta pages were read before: a fault says that the file was cut since.
    const bool foreign =
        error == MDB_INVALID || error == MDB_VERSION_MISMATCH || error == kMappingFault;
    return foreign ? Status(StatusCode::kCorrupt, status.message()) : status;
  }
}

Status LmdbError(std::string_view doing, const std::string& directory, int number) {
  const std::string path = directory + kStoreFile;
  if (number == EIO && IsFull(directory)) number = ENOSPC;
  if (number > 0) return OsError(doing, path, number);
  std::string why = mdb_strerror(number);
  if (number == kMappingFault) why = "it was cut short, or its disk failed, while it was in use";
  if (number == kFileMoved) why = "the file was removed";
  if (number == kOldReader)
    why = "a transaction that another process does not end keeps its free pages";
  if (number == kStoreBusy) why = "another process keeps it locked";
  if (number == kBadPages) why = "the pages of an earlier object of this key are damaged";
  return {StatusCode::kIo, StrCat("cannot ", doing, " ", path, ": ", why)};
}

void RemoveLmdbFile(const std::string& directory) {
  (void)unlink((directory + kStoreFile).c_str());
}

// A lock file that outlives its data file is removed by the next opening, so it must not be found beside the
// copy: the copy takes the name last.
Status ReplaceLmdbFile(const std::string& directory) {
  const std::string path = directory + kStoreFile;
  const std::string copy = path + kCopySuffix;
  if (chmod(copy.c_str(), S_IRUSR | S_IWUSR) != 0) return OsError("replace", path, errno);
  (void)unlink(path.c_str());
  (void)unlink((directory + kStoreLockFile).c_str());
  if (rename(copy.c_str(), path.c_str()) != 0) return OsError("replace", path, errno);
  return Status::Ok();
}

}  // namespace kvcache::store
