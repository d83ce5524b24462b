#include "store/disk/lmdb_copy.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "store/disk/lmdb_calls.h"
#include "store/disk/lmdb_environment.h"

namespace kvcache::store {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{64} << 20;  // that wait in memory for a commit

struct EnvironmentEnd {
  void operator()(MDB_env* env) const { mdb_env_close(env); }
};

// The new file, and the transaction that writes to it.
class Copy {
 public:
  ~Copy() { mdb_txn_abort(transaction_); }

  int Open(const std::string& path, std::int64_t map_bytes) {
    (void)unlink(path.c_str());
    MDB_env* env = nullptr;
    int error = mdb_env_create(&env);
    if (error != 0) return error;
    env_.reset(env);
    error = mdb_env_set_maxdbs(env, 3);
    if (error == 0) error = mdb_env_set_mapsize(env, static_cast<std::size_t>(map_bytes));
    constexpr unsigned kFlags = MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC;
    if (error == 0) error = mdb_env_open(env, path.c_str(), kFlags, S_IRUSR | S_IWUSR);
    return error;
  }

  int Begin() { return mdb_txn_begin(env_.get(), nullptr, 0, &transaction_); }
  int Commit() { return mdb_txn_commit(std::exchange(transaction_, nullptr)); }
  int Sync() { return mdb_env_sync(env_.get(), 1); }
  MDB_txn* transaction() const { return transaction_; }

 private:
  std::unique_ptr<MDB_env, EnvironmentEnd> env_;
  MDB_txn* transaction_ = nullptr;
};

struct Source {
  const LmdbEnvironment& environment;  // NOLINT: that of CopyTables
  MDB_txn* transaction;
};

template <class Key>
int CopyTable(const Source& from, MDB_dbi table, Copy& to, MDB_dbi copy) {
  Cursor cursor(from.transaction, table);
  Key key{};
  MDB_val value{};
  std::size_t waiting = 0;
  int error = 0;
  while ((error = cursor.Find(MDB_NEXT, RecordOf(key), value)) == 0) {
    if constexpr (std::is_same_v<Key, ObjectId>) {
      ObjectUsage usage;  // an object that was removed is not copied
      if (FindUse(from.transaction, from.environment.tables(), key, usage) != 0) continue;
    }
    std::byte* bytes = nullptr;
    const std::size_t size = value.mv_size;
    error = ReserveValue(to.transaction(), copy, RecordOf(key), size, bytes, MDB_APPEND);
    if (error == 0) error = from.environment.ReadValue(value, {bytes, size});
    if (error != 0) return error;
    waiting += size;
    if (waiting < kBatchBytes) continue;
    waiting = 0;
    error = to.Commit();
    if (error == 0) error = to.Begin();
    if (error != 0) return error;
  }
  return error == MDB_NOTFOUND ? 0 : error;
}

// Returns the bytes of a file for all tables.
int CopyBytes(const Source& from, std::int64_t& bytes) {
  std::size_t pages = 0;
  const LmdbTables& tables = from.environment.tables();
  for (const MDB_dbi table : {tables.objects, tables.usage, tables.order}) {
    MDB_stat stat{};
    if (const int error = TableStat(from.transaction, table, stat); error != 0) return error;
    pages += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
  }
  const auto live = static_cast<std::int64_t>(pages * from.environment.page_bytes());
  bytes = live + live / 4 + (std::int64_t{1} << 20);
  return 0;
}

}  // namespace

int CopyTables(const LmdbEnvironment& environment, MDB_txn* transaction, const std::string& path) {
  const Source from{environment, transaction};
  const LmdbTables& tables = environment.tables();
  std::int64_t bytes = 0;
  int error = CopyBytes(from, bytes);
  Copy to;
  if (error == 0) error = to.Open(path, bytes);
  if (error == 0) error = to.Begin();
  LmdbTables copy;
  const auto make = [&](const char* name, MDB_dbi& table) {
    if (error == 0) error = mdb_dbi_open(to.transaction(), name, MDB_CREATE, &table);
  };
  make(kObjectsTable, copy.objects);
  make(kUsageTable, copy.usage);
  make(kOrderTable, copy.order);
  if (error == 0) error = CopyTable<ObjectId>(from, tables.objects, to, copy.objects);
  if (error == 0) error = CopyTable<ObjectId>(from, tables.usage, to, copy.usage);
  if (error == 0) error = CopyTable<TurnKey>(from, tables.order, to, copy.order);
  if (error == 0) error = to.Commit();
  return error != 0 ? error : to.Sync();
}

}  // namespace kvcache::store
