// An open LMDB file and its transactions.
//
// Nobody waits for another process without an end: writing, and a thread's first reading, take locks of our own
// (file_lock.h) before those of LMDB, which has no bounded wait. The order is: DIRECTORY/lock (opening and
// replacing the file), then DIRECTORY/write-lock, then DIRECTORY/read-lock. Who takes the file's name away, or gives it
// to another file, has the lock for writing: the name stays while somebody writes.
//
// LMDB gives a file up, for reads too, when it cannot write which transaction is the last one. Such a file is
// closed here: it is not in place then, and can be opened again. So is a file that has no bytes for a read
// (lmdb_calls.h).
//
// LMDB allows one environment per file and process, and no transaction while the map changes its size.
// Open() therefore returns the environment that the process has, and transactions hold a lock that a
// change of the size takes alone.
//
// Thread safety: all calls from any number of threads. A transaction belongs to one thread.
#pragma once

#include <lmdb.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/status.h"
#include "store/disk/file_lock.h"
#include "store/disk/lmdb_readers.h"
#include "store/disk/lmdb_value.h"
#include "store/disk/store_directory.h"
#include "store/disk/store_tables.h"
#include "store/retry_pause.h"

namespace kvcache::store {

struct LmdbOptions {
  std::int64_t map_bytes = 0;          // at most
  std::chrono::milliseconds max_wait;  // for a lock that another process has
};

class LmdbEnvironment {
 public:
  // Opens DIRECTORY/objects.mdb, or makes it. A file with a damaged index is discarded first; wrong counters,
  // and tables that do not agree, are corrected. Errors: those of PrepareStoreDirectory and of
  // DirectoryLock::Take; kIo, in LMDB's or the operating system's words. All name the directory.
  static Result<std::shared_ptr<LmdbEnvironment>> Open(const std::string& directory,
                                                       const LmdbOptions& options,
                                                       MissingDirectory missing);
  ~LmdbEnvironment();
  LmdbEnvironment(const LmdbEnvironment&) = delete;
  LmdbEnvironment& operator=(const LmdbEnvironment&) = delete;

  // Runs `body` in a transaction. A write is committed if `body` returned MDB_SUCCESS, else it is taken
  // back. Returns the number of `body`, of LMDB, or of lmdb_calls.h. After kMappingFault the file is closed, and
  // if it was written to, it has lost its name: LMDB's locks on it stay taken.
  using Body = std::function<int(MDB_txn*)>;
  int Read(const Body& body);
  int Write(const Body& body);
  // Copies a value that the transaction found. Returns 0, a number of the system, or kMappingFault if the file
  // ends before it.
  int ReadValue(const MDB_val& value, std::span<std::byte> bytes) const;
  // Returns whether LMDB may remove a value that the transaction found (lmdb_value.h).
  LmdbRun CheckRun(const MDB_val& value, std::size_t key_bytes) const;
  // Writes the header of such a value's pages anew. Returns whether it could. REQUIRES: a write transaction; the
  // pages are the value's.
  bool MendRun(const MDB_val& value, std::size_t key_bytes) const;

  // Makes the map larger, up to `max_bytes`, if the system lets it. Returns whether it did.
  bool Grow(std::int64_t max_bytes);
  // Frees what processes that are gone had read. Returns 0, with how many there were, or an error.
  int ClearDeadReaders(int& dead);
  // Returns 0 when everybody reads what is the newest state now, or a later one, and whether somebody did not.
  // Takes the time that it waited from `left`, and returns kOldReader if that was too little. After a wait in vain
  // it looks once, without waiting, for a while that doubles from 1 to 30 seconds.
  int WaitForReaders(std::chrono::milliseconds& left, bool& has_waited);

  // Returns an error of the calls above as a Status that names the file, and who is in the way.
  Status Error(std::string_view doing, int number);

  // Returns whether LMDB continues with the file.
  bool IsOpen() const { return fd_ >= 0; }
  // Returns whether the file is open and still has its name.
  bool IsInPlace() const;
  // Takes the file's name away if it still has it: the next Open makes a new one. Errors: those of
  // DirectoryLock::Take; kIo.
  Status RemoveFile();
  // Gives the file's name to a copy without free pages, which has all that was committed. This environment stays
  // with the old file. Returns false if the file had lost its name: another one has it. Errors: those of
  // DirectoryLock::Take; kIo.
  Result<bool> Compact();
  // Returns the bytes of the file.
  std::int64_t FileBytes() const;
  std::int64_t map_bytes() const { return map_bytes_; }
  std::size_t page_bytes() const { return page_bytes_; }
  const LmdbTables& tables() const { return tables_; }
  const std::string& directory() const { return directory_; }
  // Says what was wrong with the file when it was opened, and what was done; empty: nothing.
  const std::string& repair() const { return repair_; }

 private:
  LmdbEnvironment(std::string directory, const LmdbOptions& options);

  Status OpenFile();
  Status ClearOwnPlaces();
  // As Error; kCorrupt for damage.
  Status OpeningError(std::string_view doing, int error);
  Status CheckFile();
  Status CheckNewest(std::vector<LmdbCounters>& wrong, bool& tables_agree);
  Status CorrectCounters();
  Status OpenTables();
  Status CorrectTables();
  int OpenTablesIn(MDB_txn* transaction, unsigned flags);
  // Finds map_ and map_bytes_. REQUIRES: the tables exist.
  int FindMap(MDB_txn* transaction) const;
  // Returns whether LMDB has given the file up, as far as can be seen.
  bool IsGivenUp();
  // Returns whether the file has become smaller: somebody cut it.
  bool IsCut() const;
  void Close();
  // Returns when no thread is closing the file: LMDB must not have a file open twice in a process.
  void WaitForClose() const;
  int WriteIn(const Body& body);
  int Change(const Body& body, std::shared_lock<std::shared_mutex>& lock);
  // Writes a copy without free pages, and tells the transaction that it has. Returns 0 or an error.
  int MakeCopy(const std::string& path, std::uint64_t& transaction);
  // Finds the newest transaction. Returns 0 or an error.
  int FindNewest(std::uint64_t& transaction);
  Result<bool> CopyAndReplace(const std::string& copy);
  int Begin(bool is_write, std::shared_lock<std::shared_mutex>& lock, MDB_txn** transaction);
  // Changes the size of the map. REQUIRES: map_lock_ alone. Returns 0 or an error; then the file may be closed.
  int SetMapBytes(std::int64_t bytes);
  int FollowGrownFile();
  void CloseAlone();
  LmdbValuePlace PlaceOf(const MDB_val& value, std::size_t key_bytes) const;

  const std::string directory_;
  const LmdbOptions options_;
  const int process_;  // a process that was forked must not use it
  std::string repair_;
  std::atomic<bool> has_fault_ = false;  // the file had no bytes for a read
  std::atomic<bool> is_left_ = false;  // in the middle of a write: a thread keeps a lock in the map
  std::mutex pause_mutex_;
  RetryPause reader_pause_{std::chrono::seconds(1), std::chrono::seconds(30)};  // after kOldReader
  std::unique_ptr<FileLock> write_lock_, read_lock_;
  std::unique_ptr<LmdbReaders> readers_;
  MDB_env* env_ = nullptr;
  std::atomic<int> fd_ = -1;  // LMDB's; -1: the file is closed
  LmdbTables tables_;
  bool tables_differ_ = false;  // as long as the file is opened
  std::size_t page_bytes_ = 0;
  mutable std::atomic<std::int64_t> largest_bytes_ = 0;  // that the file had
  mutable std::atomic<std::int64_t> map_bytes_ = 0;
  mutable std::atomic<const std::byte*> map_ = nullptr;  // the file's first byte
  mutable std::shared_mutex map_lock_;                   // shared by transactions
};

}  // namespace kvcache::store
