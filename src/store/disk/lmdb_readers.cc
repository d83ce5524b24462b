#include "store/disk/lmdb_readers.h"

#include <cerrno>
#include <cstdio>
#include <new>
#include <utility>

#include "store/disk/lmdb_calls.h"

namespace kvcache::store {
namespace {

int ErrorOfLock(int error) {
  return error == EWOULDBLOCK ? kStoreBusy : error;
}

}  // namespace

int LmdbReaders::Begin(MDB_env* env, MDB_txn** transaction) {
  *transaction = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_.empty()) {
      *transaction = ended_.back();
      ended_.pop_back();
    }
  }
  if (*transaction != nullptr) {
    const int error = Guarded([&] { return mdb_txn_renew(*transaction); });
    if (error == MDB_BAD_RSLOT || error == kMappingFault) {  // somebody cut LMDB's lock file
      LeaveToTheSystem(std::exchange(*transaction, nullptr));
      return kMappingFault;
    }
    if (error != 0) End(std::exchange(*transaction, nullptr));
    return error;
  }
  const FileLockGuard lock(lock_, max_wait_);
  if (lock.error() != 0) return ErrorOfLock(lock.error());
  int error = Guarded([&] { return mdb_txn_begin(env, nullptr, MDB_RDONLY, transaction); });
  if (error != MDB_READERS_FULL) return error;
  error = Guarded(
      [&] { return mdb_reader_check(env, nullptr); });  // perhaps of processes that were killed
  if (error != 0) return error;
  return Guarded([&] { return mdb_txn_begin(env, nullptr, MDB_RDONLY, transaction); });
}

void LmdbReaders::End(MDB_txn* transaction) {
  const bool is_reset = RunGuarded([&] { mdb_txn_reset(transaction); });
  try {
    const std::lock_guard lock(mutex_);
    if (is_reset) ended_.push_back(transaction);
  } catch (const std::bad_alloc&) {
    (void)RunGuarded([&] { mdb_txn_abort(transaction); });
  }
}

int LmdbReaders::ClearDead(MDB_env* env, int& dead) {
  const FileLockGuard lock(lock_, max_wait_);
  if (lock.error() != 0) return ErrorOfLock(lock.error());
  return Guarded([&] { return mdb_reader_check(env, &dead); });
}

void LmdbReaders::Close() {
  const std::lock_guard lock(mutex_);
  for (MDB_txn* const transaction : ended_) {
    (void)RunGuarded([&] { mdb_txn_abort(transaction); });
  }
  ended_.clear();
}

// LMDB tells of readers in lines of text: process, thread, transaction or "-".
int LmdbReaders::FindOldest(MDB_env* env, Oldest& oldest) {
  const auto see = [](const char* line, void* found) {
    auto& best = *static_cast<Oldest*>(found);
    int process = 0;
    unsigned long long thread = 0, transaction = 0;
    if (std::sscanf(line, "%d %llx %llu", &process, &thread, &transaction) == 3 &&
        transaction < best.transaction) {
      best = {transaction, process};
    }
    return 0;
  };
  const int result = Guarded([&] { return mdb_reader_list(env, see, &oldest); });
  return result < 0 ? result : 0;
}

bool LmdbReaders::HasPlaces(MDB_env* env, pid_t process) {
  struct Search {
    pid_t process;
    bool is_found;
  } search{process, false};
  const auto see = [](const char* line, void* context) {
    auto& looks = *static_cast<Search*>(context);
    int owner = 0;
    if (std::sscanf(line, "%d", &owner) == 1 && owner == looks.process) looks.is_found = true;
    return 0;
  };
  const int result = Guarded([&] { return mdb_reader_list(env, see, &search); });
  return result >= 0 && search.is_found;
}

}  // namespace kvcache::store
