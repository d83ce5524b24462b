// An open LMDB file and its transactions.
//
// LMDB gives a file up, for reads too, when it cannot write which transaction is the last one. Such a file is
// closed here: it is not in place then, and can be opened again.
//
// LMDB allows one environment per file and process, and no transaction while the map changes its size.
// Open() therefore returns the environment that the process has, and transactions hold a lock that a
// change of the size takes alone.
//
// Thread safety: all calls from any number of threads. A transaction belongs to one thread.
#pragma once

#include <lmdb.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/status.h"
#include "store/store_directory.h"

namespace kvcache {

// The tables of a store, in a transaction.
struct LmdbTables {
  MDB_dbi objects = 0;  // id -> envelope and payload
  MDB_dbi usage = 0;    // id -> turn of its last use, size, time
  MDB_dbi order = 0;    // turn, big-endian -> id
};

class LmdbEnvironment {
 public:
  // Opens DIRECTORY/objects.mdb with at most `map_bytes`, or makes it. A file with a damaged index is
  // discarded first. Errors: those of PrepareStoreDirectory; kIo, in LMDB's or the operating system's
  // words. All name the directory.
  static Result<std::shared_ptr<LmdbEnvironment>> Open(const std::string& directory,
                                                       std::int64_t map_bytes,
                                                       MissingDirectory missing);
  ~LmdbEnvironment();
  LmdbEnvironment(const LmdbEnvironment&) = delete;
  LmdbEnvironment& operator=(const LmdbEnvironment&) = delete;

  // Runs `body` in a transaction. A write is committed if `body` returned MDB_SUCCESS, else it is taken
  // back. Returns LMDB's number: that of `body`, or of the transaction itself.
  using Body = std::function<int(MDB_txn*)>;
  int Read(const Body& body);
  int Write(const Body& body);

  // Returns an error of LMDB as a Status that names the file.
  Status Error(std::string_view doing, int number) const;

  // Returns whether LMDB goes on with the file.
  bool IsOpen() const { return fd_ >= 0; }
  // Returns whether the file is open and still has its name.
  bool IsInPlace() const;
  // Takes the file's name away if it still has it: the next Open makes a new one. Errors: those of
  // DirectoryLock::Take.
  Status RemoveFile() const;
  // Gives the file's name to a copy without free pages. This environment stays with the old file. Errors:
  // those of DirectoryLock::Take; kIo.
  Status Compact() const;
  // Returns whether LMDB may remove the value of a key of so many bytes (lmdb_check.h).
  bool IsSound(std::span<const std::byte> value, std::size_t key_bytes) const;
  // Returns the bytes of the file.
  std::int64_t FileBytes() const;
  std::int64_t map_bytes() const { return map_bytes_; }
  std::size_t page_bytes() const { return page_bytes_; }
  const LmdbTables& tables() const { return tables_; }
  const std::string& directory() const { return directory_; }
  // Says why the file was discarded when it was opened; empty if it was not.
  const std::string& discarded() const { return discarded_; }

 private:
  explicit LmdbEnvironment(std::string directory);

  Status OpenFile(std::int64_t map_bytes);
  Status CheckFile();
  Status OpenTables();
  // Finds map_ and map_bytes_. REQUIRES: the tables exist.
  int FindMap(MDB_txn* transaction) const;
  // Returns whether LMDB has given the file up, as far as can be seen.
  bool IsGivenUp() const;
  void Close();
  // Returns when no thread is closing the file: LMDB must not have a file open twice in a process.
  void WaitForClose() const;
  int Begin(unsigned flags, std::shared_lock<std::shared_mutex>& lock, MDB_txn** transaction) const;

  const std::string directory_;
  const int process_;  // a process that was forked must not use it
  std::string discarded_;
  MDB_env* env_ = nullptr;
  std::atomic<int> fd_ = -1;  // LMDB's; -1: the file is closed
  LmdbTables tables_;
  std::size_t page_bytes_ = 0;
  mutable std::atomic<std::int64_t> map_bytes_ = 0;
  mutable std::atomic<const std::byte*> map_ = nullptr;  // the file's first byte
  mutable std::shared_mutex map_lock_;                   // shared by transactions
};

}  // namespace kvcache
