#include "store/lmdb_environment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "base/strings.h"
#include "platform/os_error.h"
#include "store/lmdb_check.h"

namespace kvcache {
namespace {

constexpr const char* kFile = "/objects.mdb";
constexpr const char* kLockFile = "/objects.mdb-lock";  // LMDB's name for it
constexpr unsigned kReaders = 510;                      // transactions at once, of all processes
constexpr off_t kLockFileBytes = 40960;                 // of so many readers

// The environments of this process, by directory.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<LmdbEnvironment>> open;
};

Registry& OpenEnvironments() {
  static auto* const registry = new Registry;  // outlives every store
  return *registry;
}

class File {
 public:
  File(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR)) {}
  ~File() {
    if (fd_ >= 0) (void)close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Ends a transaction that is not committed, also if its body throws.
struct TransactionEnd {
  void operator()(MDB_txn* transaction) const { mdb_txn_abort(transaction); }
};

std::int64_t SizeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? static_cast<std::int64_t>(info.st_size) : 0;
}

// LMDB maps the file of locks, and a map of a file without its blocks ends the process when the disk is
// full.
Status ReserveLockFile(const std::string& path) {
  const File file(path, O_RDWR | O_CREAT);
  if (file.fd() < 0) return OsError("write", path, errno);
  if (SizeOf(file.fd()) >= kLockFileBytes) return Status::Ok();
  const int error = posix_fallocate(file.fd(), 0, kLockFileBytes);
  return error == 0 ? Status::Ok() : OsError("write", path, error);
}

// Checks what mdb_env_open itself reads. The last pages of a file may have been reserved and never
// written; a map must not end before them.
Status CheckBeforeOpening(const std::string& path) {
  const File file(path, O_RDWR);
  if (file.fd() < 0) {
    if (errno != ENOENT) return OsError("open", path, errno);
    (void)unlink((path + "-lock").c_str());  // of another file
    return Status::Ok();
  }
  const std::int64_t size = SizeOf(file.fd());
  if (size == 0) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const LmdbMeta meta, CheckLmdbMeta(file.fd()));
  const auto least = static_cast<off_t>((meta.last_page + 1) * meta.page_bytes);
  if (size >= least) return Status::Ok();
  const int error = posix_fallocate(file.fd(), 0, least);
  return error == 0 ? Status::Ok() : OsError("write", path, error);
}

// LMDB calls a write that ended early, as the one that fills a disk, an error of input and output.
bool IsFull(const std::string& directory) {
  constexpr std::uint64_t kLeastFree = std::uint64_t{64} << 10;
  struct statvfs info {};
  return statvfs(directory.c_str(), &info) == 0 && info.f_bavail * info.f_frsize < kLeastFree;
}

void RemoveFiles(const std::string& directory) {
  (void)unlink((directory + kFile).c_str());
  (void)unlink((directory + kLockFile).c_str());
}

}  // namespace

Result<std::shared_ptr<LmdbEnvironment>> LmdbEnvironment::Open(const std::string& directory,
                                                               std::int64_t map_bytes,
                                                               MissingDirectory missing) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string real, PrepareStoreDirectory(directory, missing));
  Registry& registry = OpenEnvironments();
  const std::lock_guard one_at_a_time(registry.mutex);
  auto& slot = registry.open[real];
  if (const auto known = slot.lock(); known != nullptr && known->process_ == getpid()) {
    if (known->IsInPlace()) return known;
    known->WaitForClose();
  }
  KVCACHE_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(real));
  std::string discarded;
  for (int attempt = 0;; ++attempt) {
    std::shared_ptr<LmdbEnvironment> made(new LmdbEnvironment(real));
    Status status = made->OpenFile(map_bytes);
    if (status.ok()) {
      made->discarded_ = discarded;
      slot = made;
      return made;
    }
    if (status.code() != StatusCode::kCorrupt || attempt > 0) return status;
    discarded = status.message();
    made.reset();
    RemoveFiles(real);
  }
}

LmdbEnvironment::LmdbEnvironment(std::string directory)
    : directory_(std::move(directory)), process_(getpid()) {}

LmdbEnvironment::~LmdbEnvironment() {
  if (env_ != nullptr && process_ == getpid()) mdb_env_close(env_);
}

Status LmdbEnvironment::OpenFile(std::int64_t map_bytes) {
  const std::string path = directory_ + kFile;
  KVCACHE_RETURN_IF_ERROR(CheckBeforeOpening(path));
  KVCACHE_RETURN_IF_ERROR(ReserveLockFile(directory_ + kLockFile));
  int error = mdb_env_create(&env_);
  if (error != 0) return Error("open", error);
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  // A file that is larger than the map needs free pages beyond its end, even to remove objects.
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && info.st_size > map_bytes) {
    map_bytes = info.st_size + info.st_size / 8 + (1 << 20);
  }
  if (error == 0) error = mdb_env_set_maxdbs(env_, 3);
  if (error == 0) error = mdb_env_set_maxreaders(env_, kReaders);
  if (error == 0) {
    error = mdb_env_set_mapsize(env_, static_cast<std::size_t>(map_bytes / page * page));
  }
  // A commit writes the pages to the disk before it names them. The name itself may reach the disk
  // later, so a loss of power can undo the last commit and nothing else.
  if (error == 0) {
    error = mdb_env_open(env_, path.c_str(), MDB_NOSUBDIR | MDB_NOTLS | MDB_NOMETASYNC,
                         S_IRUSR | S_IWUSR);
  }
  if (error != 0) {
    Status status = Error("open", error);
    const bool foreign = error == MDB_INVALID || error == MDB_VERSION_MISMATCH;
    return foreign ? Status(StatusCode::kCorrupt, status.message()) : status;
  }
  int fd = -1;
  (void)mdb_env_get_fd(env_, &fd);
  fd_ = fd;
  int dead = 0;
  (void)mdb_reader_check(env_, &dead);
  KVCACHE_RETURN_IF_ERROR(CheckFile());
  return OpenTables();
}

Status LmdbEnvironment::CheckFile() {
  Status checked;
  const int error = Read([&](MDB_txn* transaction) {
    // An empty file has no transaction yet.
    if (mdb_txn_id(transaction) > 0) checked = CheckLmdbFile(fd_, mdb_txn_id(transaction));
    return MDB_SUCCESS;
  });
  if (error != 0) return Error("read", error);
  return checked;
}

Status LmdbEnvironment::OpenTables() {
  const int error = Write([&](MDB_txn* transaction) {
    int result = mdb_dbi_open(transaction, "objects", MDB_CREATE, &tables_.objects);
    if (result == 0) result = mdb_dbi_open(transaction, "usage", MDB_CREATE, &tables_.usage);
    if (result == 0) result = mdb_dbi_open(transaction, "order", MDB_CREATE, &tables_.order);
    MDB_stat stat{};
    if (result == 0) result = mdb_stat(transaction, tables_.objects, &stat);
    page_bytes_ = stat.ms_psize;
    return result;
  });
  if (error != 0) return Error("write", error);
  const int found = Read([&](MDB_txn* transaction) { return FindMap(transaction); });
  return found == 0 ? Status::Ok() : Error("read", found);
}

// A table's description lies in a page of the main table, whose number is in its header.
int LmdbEnvironment::FindMap(MDB_txn* transaction) const {
  MDB_envinfo info{};
  (void)mdb_env_info(env_, &info);
  map_bytes_ = static_cast<std::int64_t>(info.me_mapsize);
  MDB_dbi main = 0;
  int result = mdb_dbi_open(transaction, nullptr, 0, &main);
  char name[] = "objects";
  MDB_val key{sizeof(name) - 1, name};
  MDB_val value{};
  if (result == 0) result = mdb_get(transaction, main, &key, &value);
  if (result != 0) return result;
  const auto address = reinterpret_cast<std::uintptr_t>(value.mv_data);
  const auto* const page = reinterpret_cast<const std::byte*>(address / page_bytes_ * page_bytes_);
  std::uint64_t number = 0;
  std::memcpy(&number, page, sizeof(number));
  map_ = page - number * page_bytes_;
  return 0;
}

int LmdbEnvironment::Begin(unsigned flags, std::shared_lock<std::shared_mutex>& lock,
                           MDB_txn** transaction) const {
  for (int attempt = 0;; ++attempt) {
    if (env_ == nullptr) return MDB_PANIC;
    const int error = mdb_txn_begin(env_, nullptr, flags, transaction);
    if (error == 0 || attempt == 2) return error;
    if (error == MDB_READERS_FULL) {  // perhaps of processes that were killed
      int dead = 0;
      (void)mdb_reader_check(env_, &dead);
    } else if (error == MDB_MAP_RESIZED) {  // another process has a larger budget
      lock.unlock();
      {
        const std::unique_lock alone(map_lock_);
        if (env_ == nullptr) return MDB_PANIC;
        (void)mdb_env_set_mapsize(env_, 0);
        MDB_txn* look = nullptr;
        if (mdb_txn_begin(env_, nullptr, MDB_RDONLY, &look) == 0) {
          (void)FindMap(look);
          mdb_txn_abort(look);
        }
      }
      lock.lock();
    } else {
      return error;
    }
  }
}

int LmdbEnvironment::Read(const Body& body) {
  std::shared_lock lock(map_lock_);
  MDB_txn* transaction = nullptr;
  if (const int error = Begin(MDB_RDONLY, lock, &transaction); error != 0) {
    lock.unlock();
    if (error == MDB_PANIC) Close();
    return error;
  }
  const std::unique_ptr<MDB_txn, TransactionEnd> end(transaction);
  return body(transaction);
}

int LmdbEnvironment::Write(const Body& body) {
  std::shared_lock lock(map_lock_);
  MDB_txn* transaction = nullptr;
  if (const int error = Begin(0, lock, &transaction); error != 0) {
    lock.unlock();
    if (error == MDB_PANIC) Close();
    return error;
  }
  std::unique_ptr<MDB_txn, TransactionEnd> end(transaction);
  const int result = body(transaction);
  if (result != 0) return result;
  const int committed = mdb_txn_commit(end.release());
  lock.unlock();
  if (committed != 0 && IsGivenUp()) Close();
  return committed;
}

// Only a transaction is told. If there is no room for another reader, the next call finds out.
bool LmdbEnvironment::IsGivenUp() const {
  const std::shared_lock lock(map_lock_);
  MDB_txn* look = nullptr;
  const int error = env_ == nullptr ? MDB_PANIC : mdb_txn_begin(env_, nullptr, MDB_RDONLY, &look);
  if (error == 0) mdb_txn_abort(look);
  return error == MDB_PANIC;
}

void LmdbEnvironment::Close() {
  const std::unique_lock alone(map_lock_);
  fd_ = -1;
  if (env_ != nullptr) mdb_env_close(std::exchange(env_, nullptr));
}

void LmdbEnvironment::WaitForClose() const {
  if (IsOpen()) return;
  const std::shared_lock closed(map_lock_);
}

Status LmdbEnvironment::Error(std::string_view doing, int number) const {
  const std::string path = directory_ + kFile;
  if (number == EIO && IsFull(directory_)) number = ENOSPC;
  if (number > 0) return OsError(doing, path, number);
  return {StatusCode::kIo, StrCat("cannot ", doing, " ", path, ": ", mdb_strerror(number))};
}

bool LmdbEnvironment::IsInPlace() const {
  struct stat named {};
  struct stat open {};
  return stat((directory_ + kFile).c_str(), &named) == 0 && fstat(fd_, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

Status LmdbEnvironment::RemoveFile() const {
  KVCACHE_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(directory_));
  if (IsInPlace()) RemoveFiles(directory_);
  return Status::Ok();
}

Status LmdbEnvironment::Compact() const {
  KVCACHE_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(directory_));
  const std::string path = directory_ + kFile;
  const std::string copy = path + ".new";
  (void)unlink(copy.c_str());  // of a process that was killed
  {
    const std::shared_lock no_change_of_size(map_lock_);
    const int error =
        env_ == nullptr ? MDB_PANIC : mdb_env_copy2(env_, copy.c_str(), MDB_CP_COMPACT);
    if (error != 0) {
      (void)unlink(copy.c_str());
      return Error("copy", error);
    }
  }
  if (chmod(copy.c_str(), S_IRUSR | S_IWUSR) != 0 || rename(copy.c_str(), path.c_str()) != 0) {
    return OsError("replace", path, errno);
  }
  (void)unlink((directory_ + kLockFile).c_str());  // of the old file
  return Status::Ok();
}

bool LmdbEnvironment::IsSound(std::span<const std::byte> value, std::size_t key_bytes) const {
  return LmdbValueIsSound(value, key_bytes, page_bytes_, map_);
}

std::int64_t LmdbEnvironment::FileBytes() const {
  return SizeOf(fd_);
}

}  // namespace kvcache
