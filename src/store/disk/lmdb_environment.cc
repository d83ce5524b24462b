#include "store/disk/lmdb_environment.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "platform/address_space.h"
#include "platform/os_error.h"
#include "store/disk/lmdb_calls.h"
#include "store/disk/lmdb_check.h"
#include "store/disk/lmdb_copy.h"
#include "store/disk/lmdb_file.h"

namespace kvcache::store {
namespace {

constexpr int kMaxOpenings = 4;           // of files that are damaged
constexpr std::int64_t kOthersShare = 4;  // of the address space: one part in four is for others

// The environments of this process, by directory.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<LmdbEnvironment>> open;
};

Registry& OpenEnvironments() {
  static auto* const registry = new Registry;  // outlives every store
  return *registry;
}

// Ends a transaction that is not committed, also if its body throws.
struct TransactionEnd {
  void operator()(MDB_txn* transaction) const {
    (void)RunGuarded([&] { mdb_txn_abort(transaction); });
  }
};

std::int64_t SizeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? static_cast<std::int64_t>(info.st_size) : 0;
}

// Removes a file that is not open here. REQUIRES: the directory's lock.
Status RemoveAlone(const std::string& directory, std::chrono::milliseconds max_wait) {
  KVCACHE_ASSIGN_OR_RETURN(const auto lock, FileLock::Open(directory + kWriteLock));
  const FileLockGuard alone(*lock, max_wait);
  if (alone.error() != 0) {
    return {StatusCode::kIo, StrCat("cannot remove ", directory, kStoreFile, ", which is damaged: ",
                                    LockHolder(lock->path()), " keeps ", lock->path(), " locked")};
  }
  RemoveLmdbFile(directory);
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<LmdbEnvironment>> LmdbEnvironment::Open(const std::string& directory,
                                                               const LmdbOptions& options,
                                                               MissingDirectory missing) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string real, PrepareStoreDirectory(directory, missing));
  Registry& registry = OpenEnvironments();
  const std::lock_guard one_at_a_time(registry.mutex);
  auto& slot = registry.open[real];
  if (const auto known = slot.lock(); known != nullptr && known->process_ == getpid()) {
    if (known->IsInPlace()) return known;
    known->WaitForClose();
  }
  KVCACHE_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(real, options.max_wait));
  std::string discarded;
  for (int attempt = 0;; ++attempt) {
    std::shared_ptr<LmdbEnvironment> made(new LmdbEnvironment(real, options));
    Status status = made->OpenFile();
    if (status.ok()) {
      if (!discarded.empty()) made->repair_ = StrCat(discarded, "; the file was discarded");
      slot = made;
      return made;
    }
    const bool is_corrupt = status.code() == StatusCode::kCorrupt;
    // While it was opened: the next check says where.
    const bool is_cut = made->has_fault_ || (made->IsOpen() && made->IsCut());
    made.reset();
    if ((!is_corrupt && !is_cut) || attempt == kMaxOpenings) return status;
    if (!is_corrupt) continue;
    discarded = status.message();
    KVCACHE_RETURN_IF_ERROR(RemoveAlone(real, options.max_wait));
  }
}

LmdbEnvironment::LmdbEnvironment(std::string directory, const LmdbOptions& options)
    : directory_(std::move(directory)), options_(options), process_(getpid()) {}

LmdbEnvironment::~LmdbEnvironment() {
  if (process_ == getpid()) CloseAlone();
}

int LmdbEnvironment::Begin(bool is_write, std::shared_lock<std::shared_mutex>& lock,
                           MDB_txn** transaction) {
  for (int attempt = 0;; ++attempt) {
    if (env_ == nullptr) return MDB_PANIC;
    if (IsCut()) return kMappingFault;
    int error = 0;
    if (is_write) {
      // LMDB also takes the readers' lock if the last writer was killed.
      const FileLockGuard readers(*read_lock_, options_.max_wait);
      if (readers.error() != 0)
        return readers.error() == EWOULDBLOCK ? kStoreBusy : readers.error();
      error = Guarded([&] { return mdb_txn_begin(env_, nullptr, 0, transaction); });
    } else {
      error = readers_->Begin(env_, transaction);
    }
    if (error != MDB_MAP_RESIZED || attempt == 2) return error;
    lock.unlock();  // another process has a larger budget
    const int followed = FollowGrownFile();
    lock.lock();
    if (followed != 0) return followed;
  }
}

int LmdbEnvironment::Read(const Body& body) {
  int result = 0;
  {
    std::shared_lock lock(map_lock_);
    MDB_txn* transaction = nullptr;
    result = Begin(false, lock, &transaction);
    if (result == 0) {
      const auto end = [this](MDB_txn* ended) { readers_->End(ended); };
      const std::unique_ptr<MDB_txn, decltype(end)> ends(transaction, end);
      result = body(transaction);
    }
  }
  if (result == kMappingFault) has_fault_ = true;
  if (result == MDB_PANIC || result == kMappingFault) Close();
  return result;
}

int LmdbEnvironment::Write(const Body& body) {
  const FileLockGuard alone(*write_lock_, options_.max_wait);
  if (alone.error() != 0) return alone.error() == EWOULDBLOCK ? kStoreBusy : alone.error();
  const int result = WriteIn(body);
  if (result == kMappingFault) has_fault_ = true;
  if (result == kMappingFault || result == MDB_PANIC || (result > 0 && IsGivenUp())) Close();
  return result;
}

// A file of which a write was left in the middle loses its name at once, before another process writes or another
// thread closes the file: LMDB's lock on it cannot be given back.
int LmdbEnvironment::WriteIn(const Body& body) {
  std::shared_lock lock(map_lock_);
  if (env_ == nullptr) return MDB_PANIC;
  if (!IsInPlace()) return kFileMoved;
  const int result = Change(body, lock);
  if (result == kMappingFault) {
    is_left_ = true;
    if (IsInPlace()) RemoveLmdbFile(directory_);
  }
  return result;
}

int LmdbEnvironment::Change(const Body& body, std::shared_lock<std::shared_mutex>& lock) {
  MDB_txn* transaction = nullptr;
  if (const int error = Begin(true, lock, &transaction); error != 0) return error;
  std::unique_ptr<MDB_txn, TransactionEnd> end(transaction);
  int result = body(transaction);
  if (result == 0 && IsCut()) result = kMappingFault;
  if (result == 0) return Guarded([&] { return mdb_txn_commit(end.release()); });
  if (result == kMappingFault) {
    LeaveToTheSystem(end.release());  // LMDB's structures may be in the middle of a change
  } else if (!RunGuarded([&] { mdb_txn_abort(end.release()); })) {
    result = kMappingFault;
  }
  return result;
}

int LmdbEnvironment::ReadValue(const MDB_val& value, std::span<std::byte> bytes) const {
  std::uint64_t at = PlaceOf(value, 0).at;
  if (at >= static_cast<std::uint64_t>(map_bytes_)) {  // in a page that the transaction has changed
    std::memcpy(bytes.data(), value.mv_data, bytes.size());
    return 0;
  }
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return kMappingFault;
    at += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return 0;
}

LmdbValuePlace LmdbEnvironment::PlaceOf(const MDB_val& value, std::size_t key_bytes) const {
  const std::uint64_t at = reinterpret_cast<std::uintptr_t>(value.mv_data) -
                           reinterpret_cast<std::uintptr_t>(map_.load());
  return {at, value.mv_size, key_bytes, page_bytes_};
}

LmdbRun LmdbEnvironment::CheckRun(const MDB_val& value, std::size_t key_bytes) const {
  const LmdbValuePlace place = PlaceOf(value, key_bytes);
  // A page that the transaction has made is in memory.
  if (place.at >= static_cast<std::uint64_t>(map_bytes_)) return LmdbRun::kSound;
  return CheckLmdbRun(fd_, place);
}

bool LmdbEnvironment::MendRun(const MDB_val& value, std::size_t key_bytes) const {
  return WriteLmdbRun(fd_, PlaceOf(value, key_bytes));
}

// A table's description lies in a page of the main table, whose number is in its header.
int LmdbEnvironment::FindMap(MDB_txn* transaction) const {
  MDB_envinfo info{};
  const std::byte* map = nullptr;
  const int error = Guarded([&] {
    (void)mdb_env_info(env_, &info);
    MDB_dbi main = 0;
    int result = mdb_dbi_open(transaction, nullptr, 0, &main);
    MDB_val key = ValueOf(kObjectsTable, std::strlen(kObjectsTable));
    MDB_val value{};
    if (result == 0) result = mdb_get(transaction, main, &key, &value);
    if (result != 0) return result;
    const auto address = reinterpret_cast<std::uintptr_t>(value.mv_data);
    const auto* const page =
        reinterpret_cast<const std::byte*>(address / page_bytes_ * page_bytes_);
    std::uint64_t number = 0;
    std::memcpy(&number, page, sizeof(number));
    map = page - number * page_bytes_;
    return 0;
  });
  if (error != 0) return error;
  map_bytes_ = static_cast<std::int64_t>(info.me_mapsize);
  map_ = map;
  return 0;
}

int LmdbEnvironment::SetMapBytes(std::int64_t bytes) {
  // LMDB unmaps the file before it maps it again, so whether it can is tried before.
  const std::int64_t more = bytes - map_bytes_;
  if (more > 0) {
    void* const place = mmap(nullptr, static_cast<std::size_t>(more), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return errno;
    (void)munmap(place, static_cast<std::size_t>(more));
  }
  int error = Guarded([&] { return mdb_env_set_mapsize(env_, static_cast<std::size_t>(bytes)); });
  MDB_txn* look = nullptr;
  if (error == 0) error = readers_->Begin(env_, &look);
  if (error == 0) {
    error = FindMap(look);
    readers_->End(look);
  }
  if (error != 0) CloseAlone();  // it may have no map
  return error;
}

int LmdbEnvironment::FollowGrownFile() {
  const std::unique_lock alone(map_lock_);
  if (env_ == nullptr) return MDB_PANIC;
  const std::int64_t size = SizeOf(fd_);
  return SetMapBytes(std::max(map_bytes_.load(), size + size / 8 + (1 << 20)));
}

bool LmdbEnvironment::Grow(std::int64_t max_bytes) {
  const std::unique_lock alone(map_lock_);
  if (env_ == nullptr || map_bytes_ >= max_bytes) return false;
  std::int64_t more = std::min(map_bytes_.load(), max_bytes - map_bytes_);
  if (const auto left = AddressSpaceLeft()) {
    // Many small steps, too, leave what others need.
    more = std::min(more, *left - (map_bytes_ + *left) / kOthersShare);
  }
  const std::int64_t bytes = (map_bytes_ + more) / static_cast<std::int64_t>(page_bytes_) *
                             static_cast<std::int64_t>(page_bytes_);
  return bytes > map_bytes_ && SetMapBytes(bytes) == 0;
}

int LmdbEnvironment::ClearDeadReaders(int& dead) {
  const std::shared_lock lock(map_lock_);
  return env_ == nullptr ? MDB_PANIC : readers_->ClearDead(env_, dead);
}

int LmdbEnvironment::FindNewest(std::uint64_t& transaction) {
  const std::shared_lock lock(map_lock_);
  if (env_ == nullptr) return MDB_PANIC;
  MDB_envinfo info{};
  const int error = Guarded([&] { return mdb_env_info(env_, &info); });
  transaction = info.me_last_txnid;
  return error;
}

int LmdbEnvironment::WaitForReaders(std::chrono::milliseconds& left, bool& has_waited) {
  using Clock = RetryPause::Clock;
  has_waited = false;
  const Clock::time_point start = Clock::now();
  auto max = left;
  {
    const std::lock_guard lock(pause_mutex_);
    if (reader_pause_.Left(start) > Clock::duration::zero()) max = std::chrono::milliseconds(0);
  }
  std::uint64_t newest = 0;
  int error = FindNewest(newest);
  for (; error == 0; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    LmdbReaders::Oldest oldest;
    {
      const std::shared_lock lock(map_lock_);
      error = env_ == nullptr ? MDB_PANIC : LmdbReaders::FindOldest(env_, oldest);
    }
    if (error != 0 || oldest.transaction >= newest) break;
    has_waited = true;
    if (Clock::now() - start >= max) error = kOldReader;
    if (error != 0) break;
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
  left = std::max(left - waited, std::chrono::milliseconds(0));
  const std::lock_guard lock(pause_mutex_);
  if (error == 0) reader_pause_.Worked();
  if (error == kOldReader) reader_pause_.Failed(Clock::now());
  return error;
}

// Only a transaction is told. If there is no room for another reader, the next call finds out.
bool LmdbEnvironment::IsGivenUp() {
  const std::shared_lock lock(map_lock_);
  MDB_txn* look = nullptr;
  const int error = env_ == nullptr ? MDB_PANIC : readers_->Begin(env_, &look);
  if (error == 0) readers_->End(look);
  return error == MDB_PANIC;
}

bool LmdbEnvironment::IsCut() const {
  const std::int64_t size = SizeOf(fd_);
  std::int64_t largest = largest_bytes_;
  while (size > largest && !largest_bytes_.compare_exchange_weak(largest, size)) {
  }
  return size < largest;
}

void LmdbEnvironment::Close() {
  const std::unique_lock alone(map_lock_);
  CloseAlone();
}

void LmdbEnvironment::CloseAlone() {
  fd_ = -1;
  MDB_env* const env = std::exchange(env_, nullptr);
  if (env == nullptr) return;
  readers_->Close();
  if (is_left_) {
    LeaveToTheSystem(env);  // a thread would continue to use its lock in the map
  } else {
    (void)RunGuarded([&] { mdb_env_close(env); });
  }
}

void LmdbEnvironment::WaitForClose() const {
  if (IsOpen()) return;
  const std::shared_lock closed(map_lock_);
}

Status LmdbEnvironment::Error(std::string_view doing, int number) {
  Status status = LmdbError(doing, directory_, number);
  if (number == kStoreBusy) {
    const auto keeps = [&](const std::string& path) {
      return LockHolder(path) != "another process";
    };
    const std::string& path = keeps(read_lock_->path()) ? read_lock_->path() : write_lock_->path();
    return {StatusCode::kIo, StrCat("cannot ", doing, " ", directory_, kStoreFile, ": ",
                                    LockHolder(path), " keeps ", path, " locked")};
  }
  if (number == kOldReader) {
    LmdbReaders::Oldest oldest;
    const std::shared_lock lock(map_lock_);
    if (env_ != nullptr && LmdbReaders::FindOldest(env_, oldest) == 0 && oldest.process > 0) {
      return {StatusCode::kIo,
              StrCat("cannot ", doing, " ", directory_, kStoreFile, ": process ", oldest.process,
                     " does not end a transaction, and no page of the file is free before")};
    }
  }
  return status;
}

bool LmdbEnvironment::IsInPlace() const {
  struct stat named {};
  struct stat open {};
  return stat((directory_ + kStoreFile).c_str(), &named) == 0 && fstat(fd_, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

Status LmdbEnvironment::RemoveFile() {
  KVCACHE_ASSIGN_OR_RETURN(const DirectoryLock lock,
                           DirectoryLock::Take(directory_, options_.max_wait));
  const FileLockGuard alone(*write_lock_, options_.max_wait);
  if (alone.error() != 0) return Error("remove", kStoreBusy);
  if (IsInPlace()) RemoveLmdbFile(directory_);
  return Status::Ok();
}

int LmdbEnvironment::MakeCopy(const std::string& path, std::uint64_t& transaction) {
  return Read([&](MDB_txn* reading) {
    transaction = mdb_txn_id(reading);
    return CopyTables(*this, reading, path);
  });
}

Result<bool> LmdbEnvironment::Compact() {
  KVCACHE_ASSIGN_OR_RETURN(const DirectoryLock lock,
                           DirectoryLock::Take(directory_, options_.max_wait));
  if (!IsInPlace()) return false;  // another process has replaced it meanwhile
  const std::string copy = directory_ + kStoreFile + kCopySuffix;
  auto replaced = CopyAndReplace(copy);
  if (!replaced.ok() || !*replaced) (void)unlink(copy.c_str());
  return replaced;
}

// Others write while the file is copied. If somebody did, it is copied again while nobody can: their calls are errors if
// that takes longer than they wait, and nothing that was stored is lost.
Result<bool> LmdbEnvironment::CopyAndReplace(const std::string& copy) {
  std::uint64_t copied = 0;
  std::uint64_t newest = 0;
  if (const int error = MakeCopy(copy, copied); error != 0) return Error("copy", error);
  const FileLockGuard alone(*write_lock_, options_.max_wait);
  if (alone.error() != 0) return Error("replace", kStoreBusy);
  if (!IsInPlace()) return false;
  int error = FindNewest(newest);
  if (error == 0 && newest != copied) error = MakeCopy(copy, copied);
  if (error != 0) return Error("copy", error);
  KVCACHE_RETURN_IF_ERROR(ReplaceLmdbFile(directory_));
  return true;
}

std::int64_t LmdbEnvironment::FileBytes() const {
  return SizeOf(fd_);
}

}  // namespace kvcache::store
