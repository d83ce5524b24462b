// The read transactions of an LMDB file.
//
// A read transaction has a place in a table that all processes share, and LMDB locks the table when it gives
// places away. A process that stops at that moment would keep all others waiting, so places are given under a
// lock of our own, with a bounded wait (file_lock.h). Transactions that ended keep their places, for the next
// ones.
//
// LMDB does not use pages again that a reader may see. A process that was killed leaves its places behind:
// ClearDead frees them.
//
// Thread safety: Begin and End from any number of threads; Close alone.
#pragma once

#include <lmdb.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "store/disk/file_lock.h"

namespace kvcache::store {

class LmdbReaders {
 public:
  LmdbReaders(FileLock& lock, std::chrono::milliseconds max_wait)
      : lock_(lock), max_wait_(max_wait) {}

  // Begins a transaction. Returns 0, an error of LMDB, or a number of lmdb_calls.h.
  int Begin(MDB_env* env, MDB_txn** transaction);
  void End(MDB_txn* transaction);
  // Frees the places of processes that are gone. Returns 0, with how many there were, or an error.
  int ClearDead(MDB_env* env, int& dead);
  // Forgets the transactions that ended. REQUIRES: all ended.
  void Close();

  struct Oldest {
    std::uint64_t transaction = ~std::uint64_t{0};  // no reader
    pid_t process = 0;
  };
  // Finds the oldest state that somebody reads. Returns 0 or a number of lmdb_calls.h.
  static int FindOldest(MDB_env* env, Oldest& oldest);
  // Returns whether a process has places.
  static bool HasPlaces(MDB_env* env, pid_t process);

 private:
  FileLock& lock_;
  const std::chrono::milliseconds max_wait_;
  std::mutex mutex_;
  std::vector<MDB_txn*> ended_;
};

}  // namespace kvcache::store
