// How an environment opens its file: what is checked, and what is corrected.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/os_error.h"
#include "store/disk/lmdb_calls.h"
#include "store/disk/lmdb_check.h"
#include "store/disk/lmdb_environment.h"
#include "store/disk/lmdb_file.h"

namespace kvcache::store {
namespace {

// While the meta pages are read, two commits of other processes replace what is read. So many in a row is no
// chance.
constexpr int kMaxChecks = 100;

Status WriteAt(int fd, std::uint64_t at, std::span<const std::byte> bytes) {
  const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
  if (put == std::ssize(bytes)) return Status::Ok();
  return OsError("write", "the store's file", put < 0 ? errno : EIO);
}

// LMDB finds damage in a file that was sound a moment before: somebody writes to it or cuts it.
bool IsIndexDamage(int error) {
  return error == MDB_NOTFOUND || error == MDB_PAGE_NOTFOUND || error == MDB_CORRUPTED ||
         error == MDB_INCOMPATIBLE || error == MDB_CURSOR_FULL || error == MDB_BAD_TXN;
}

}  // namespace

Status LmdbEnvironment::OpeningError(std::string_view doing, int error) {
  if (error == kMappingFault) has_fault_ = true;
  Status status = Error(doing, error);
  return IsIndexDamage(error) ? Corrupt(status.message()) : status;
}

Status LmdbEnvironment::OpenFile() {
  KVCACHE_ASSIGN_OR_RETURN(write_lock_, FileLock::Open(directory_ + kWriteLock));
  KVCACHE_ASSIGN_OR_RETURN(read_lock_, FileLock::Open(directory_ + "/read-lock"));
  readers_ = std::make_unique<LmdbReaders>(*read_lock_, options_.max_wait);
  KVCACHE_ASSIGN_OR_RETURN(env_, OpenLmdbFile(directory_, options_.map_bytes));
  if (LmdbReaders::HasPlaces(env_, process_)) KVCACHE_RETURN_IF_ERROR(ClearOwnPlaces());
  int fd = -1;
  (void)mdb_env_get_fd(env_, &fd);
  fd_ = fd;
  int dead = 0;
  if (const int error = ClearDeadReaders(dead); error != 0) return OpeningError("open", error);
  KVCACHE_RETURN_IF_ERROR(CheckFile());
  return OpenTables();
}

// A process that was killed had this one's number, as in a container that starts again: LMDB takes its places for
// our own. LMDB clears these when an environment that has used one is closed.
Status LmdbEnvironment::ClearOwnPlaces() {
  MDB_txn* transaction = nullptr;
  const int error = readers_->Begin(env_, &transaction);
  if (error != 0) return OpeningError("open", error);
  readers_->End(transaction);
  CloseAlone();
  KVCACHE_ASSIGN_OR_RETURN(env_, OpenLmdbFile(directory_, options_.map_bytes));
  return Status::Ok();
}

// Checks the newest state. kNotFound: others replaced it meanwhile.
Status LmdbEnvironment::CheckNewest(std::vector<LmdbCounters>& wrong, bool& tables_agree) {
  Status checked;
  TableComparison tables;
  const int error = Read([&](MDB_txn* transaction) {
    const std::uint64_t number = mdb_txn_id(transaction);
    if (number == 0) return MDB_SUCCESS;  // an empty file has no transaction yet
    auto found = CheckLmdbFile(fd_, number, [&](const LmdbEntry& entry) { tables.See(entry); });
    if (found.ok()) wrong = std::move(*found);
    checked = found.status();
    return MDB_SUCCESS;
  });
  tables_agree = tables.Agree();
  return error != 0 ? OpeningError("read", error) : checked;
}

Status LmdbEnvironment::CheckFile() {
  std::vector<LmdbCounters> wrong;
  bool tables_agree = true;
  Status status;
  for (int i = 0; i < kMaxChecks; ++i) {
    status = CheckNewest(wrong, tables_agree);
    if (status.code() != StatusCode::kNotFound) break;
  }
  if (status.code() == StatusCode::kNotFound) {
    const FileLockGuard alone(*write_lock_, options_.max_wait);
    if (alone.error() != 0) return Error("open", kStoreBusy);
    status = CheckNewest(wrong, tables_agree);
    // Nobody writes: LMDB's lock file is of another file.
    if (status.code() == StatusCode::kNotFound) return Corrupt(status.message());
  }
  KVCACHE_RETURN_IF_ERROR(std::move(status));
  if (!wrong.empty()) KVCACHE_RETURN_IF_ERROR(CorrectCounters());
  tables_differ_ = !tables_agree;
  return Status::Ok();
}

// The counters of committed pages are changed in their place. Nobody but writers reads them.
Status LmdbEnvironment::CorrectCounters() {
  const FileLockGuard alone(*write_lock_, options_.max_wait);
  if (alone.error() != 0) return Error("open", kStoreBusy);
  std::vector<LmdbCounters> wrong;
  bool tables_agree = true;
  KVCACHE_RETURN_IF_ERROR(CheckNewest(wrong, tables_agree));
  for (const LmdbCounters& counters : wrong) {
    KVCACHE_RETURN_IF_ERROR(WriteAt(fd_, counters.at, std::as_bytes(std::span(counters.right))));
  }
  repair_ = "counters of the index were wrong, and were corrected";
  return Status::Ok();
}

int LmdbEnvironment::OpenTablesIn(MDB_txn* transaction, unsigned flags) {
  return Guarded([&] {
    int result = mdb_dbi_open(transaction, kObjectsTable, flags, &tables_.objects);
    if (result == 0) result = mdb_dbi_open(transaction, kUsageTable, flags, &tables_.usage);
    if (result == 0) result = mdb_dbi_open(transaction, kOrderTable, flags, &tables_.order);
    MDB_stat stat{};
    if (result == 0) result = mdb_stat(transaction, tables_.objects, &stat);
    page_bytes_ = stat.ms_psize;
    return result;
  });
}

// Tables that exist are opened without a lock for writing, which another process may keep.
Status LmdbEnvironment::OpenTables() {
  MDB_txn* transaction = nullptr;
  int error = readers_->Begin(env_, &transaction);
  if (error != 0) return OpeningError("read", error);
  error = OpenTablesIn(transaction, 0);
  if (error == 0) {
    error = Guarded([&] { return mdb_txn_commit(transaction); });
  } else {
    readers_->End(transaction);
  }
  if (error == MDB_NOTFOUND) {
    error = Write([&](MDB_txn* making) { return OpenTablesIn(making, MDB_CREATE); });
  }
  if (error != 0) return OpeningError("write", error);
  error = Read([&](MDB_txn* reading) { return FindMap(reading); });
  if (error != 0) return OpeningError("read", error);
  return tables_differ_ ? CorrectTables() : Status::Ok();
}

// Tables that cannot be written now, as on a full disk, are corrected by a later opening: an object that is in no order
// stays meanwhile.
Status LmdbEnvironment::CorrectTables() {
  constexpr const char* kWhat = "the tables of the index did not agree";
  const int error = Write([&](MDB_txn* making) { return RebuildTables(making, tables_); });
  if (error == kMappingFault) has_fault_ = true;
  if (IsIndexDamage(error) || error == kMappingFault) {
    return Corrupt(StrCat(kWhat, ": ", Error("write", error).message()));
  }
  if (!IsOpen()) return Error("write", error);
  repair_ = error == 0
                ? StrCat(kWhat, ", and were made anew")
                : StrCat(kWhat, ", and could not be made anew: ", Error("write", error).message());
  return Status::Ok();
}

}  // namespace kvcache::store
