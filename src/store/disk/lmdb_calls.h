// LMDB's calls on tables, with an end for reads of a file that has lost its bytes.
//
// LMDB reads its file through a map. Each call here runs in RunGuarded: if the file was cut short, or the disk
// fails, the call ends with kMappingFault, and the transaction must not be used any more. Keys and values are
// copied, so that nobody else reads the map; ReadValue of LmdbEnvironment reads large values from the file.
//
// All functions return 0, an error of LMDB or of the system, or one of the numbers below.
//
// Thread safety: that of the transaction.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "platform/mapped_file_faults.h"

namespace kvcache::store {

inline constexpr int kDamagedIndex = MDB_CORRUPTED;
inline constexpr int kMappingFault = -31001;  // the file has no bytes for a read
inline constexpr int kStoreBusy = -31002;     // another process keeps a lock
inline constexpr int kFileMoved = -31003;     // the file has lost its name
inline constexpr int kOldReader = -31004;     // a transaction of a process keeps all free pages
inline constexpr int kBadPages = -31005;  // LMDB cannot free the pages of a value (lmdb_value.h)

// Calls a function that returns a number of LMDB. It must need no clean-up: it may be left in the middle.
template <class Call>
int Guarded(const Call& call) {
  int result = kMappingFault;
  const auto run = [&] { result = call(); };
  return RunGuarded(run) ? result : kMappingFault;
}

inline MDB_val ValueOf(const void* data, std::size_t size) {
  return {size, const_cast<void*>(data)};
}
inline MDB_val ValueOf(std::span<const std::byte> bytes) {
  return ValueOf(bytes.data(), bytes.size());
}

// Keeps what LMDB made until the process ends: it was left in the middle, or shares memory that is not its own any
// more.
void LeaveToTheSystem(void* object);

// Copies a value of exactly this size.
inline int CopyRecord(const MDB_val& value, std::span<std::byte> record) {
  if (value.mv_size != record.size()) return kDamagedIndex;
  std::memcpy(record.data(), value.mv_data, record.size());
  return 0;
}

// Finds where a value is. Its bytes are in the map.
inline int FindValue(MDB_txn* transaction, MDB_dbi table, std::span<const std::byte> key,
                     MDB_val& value) {
  MDB_val name = ValueOf(key);
  return Guarded([&] { return mdb_get(transaction, table, &name, &value); });
}

inline int GetRecord(MDB_txn* transaction, MDB_dbi table, std::span<const std::byte> key,
                     std::span<std::byte> record) {
  MDB_val name = ValueOf(key);
  return Guarded([&] {
    MDB_val value{};
    const int error = mdb_get(transaction, table, &name, &value);
    return error != 0 ? error : CopyRecord(value, record);
  });
}

inline int PutRecord(MDB_txn* transaction, MDB_dbi table, std::span<const std::byte> key,
                     std::span<const std::byte> record, unsigned flags = 0) {
  MDB_val name = ValueOf(key);
  MDB_val value = ValueOf(record);
  return Guarded([&] { return mdb_put(transaction, table, &name, &value, flags); });
}

// Makes a value of so many bytes. The caller fills it, before the next call.
inline int ReserveValue(MDB_txn* transaction, MDB_dbi table, std::span<const std::byte> key,
                        std::size_t size, std::byte*& bytes, unsigned flags = 0) {
  MDB_val name = ValueOf(key);
  MDB_val value{size, nullptr};
  const int error =
      Guarded([&] { return mdb_put(transaction, table, &name, &value, MDB_RESERVE | flags); });
  bytes = static_cast<std::byte*>(value.mv_data);
  return error;
}

inline int DeleteRecord(MDB_txn* transaction, MDB_dbi table, std::span<const std::byte> key) {
  MDB_val name = ValueOf(key);
  return Guarded([&] { return mdb_del(transaction, table, &name, nullptr); });
}

inline int TableStat(MDB_txn* transaction, MDB_dbi table, MDB_stat& stat) {
  return Guarded([&] { return mdb_stat(transaction, table, &stat); });
}

// Goes through a table. Closes LMDB's cursor at the end of its life.
class Cursor {
 public:
  // LMDB reads the table's description here.
  Cursor(MDB_txn* transaction, MDB_dbi table)
      : error_(Guarded([&] { return mdb_cursor_open(transaction, table, &cursor_); })) {}
  ~Cursor() {
    if (cursor_ != nullptr) mdb_cursor_close(cursor_);
  }
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

  // Moves, and copies a key and a value of exactly these sizes.
  int Get(MDB_cursor_op op, std::span<std::byte> key, std::span<std::byte> record) {
    MDB_val value{};
    const int error = Find(op, key, value);
    return error != 0 ? error : Guarded([&] { return CopyRecord(value, record); });
  }
  // Moves, copies a key, and tells where the value is.
  int Find(MDB_cursor_op op, std::span<std::byte> key, MDB_val& value) {
    if (error_ != 0) return error_;
    return Guarded([&] {
      MDB_val name{};
      const int error = mdb_cursor_get(cursor_, &name, &value, op);
      return error != 0 ? error : CopyRecord(name, key);
    });
  }

 private:
  MDB_cursor* cursor_ = nullptr;
  int error_;
};

}  // namespace kvcache::store
