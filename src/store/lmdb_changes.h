// The tables of the disk store and how one transaction changes them (disk_store.cc describes them). The
// functions return LMDB's errors, or 0.
//
// Thread safety: that of the transaction.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kvcache/store.h"
#include "platform/wall_clock.h"
#include "store/lmdb_environment.h"
#include "store/object_format.h"

namespace kvcache {

inline constexpr std::size_t kIdBytes = sizeof(ObjectId);
static_assert(kIdBytes == 64);
inline constexpr int kDamagedIndex = MDB_CORRUPTED;

struct ObjectUsage {
  std::uint64_t turn = 0;
  std::uint64_t payload_bytes = 0;
  std::int64_t seconds = 0;
};

inline MDB_val ValueOf(const void* data, std::size_t size) {
  return {size, const_cast<void*>(data)};
}

// LMDB orders keys by their bytes.
struct Turn {
  explicit Turn(std::uint64_t number) {
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(number >> (8 * (7 - i)));
  }
  std::array<std::byte, 8> bytes;
};

inline std::uint64_t TurnOf(const MDB_val& key) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(8, key.mv_size); ++i) {
    number = number << 8 | std::to_integer<std::uint64_t>(static_cast<std::byte*>(key.mv_data)[i]);
  }
  return number;
}

// Closes an LMDB cursor at the end of its life.
class Cursor {
 public:
  Cursor(MDB_txn* transaction, MDB_dbi table)
      : error_(mdb_cursor_open(transaction, table, &cursor_)) {}
  ~Cursor() {
    if (cursor_ != nullptr) mdb_cursor_close(cursor_);
  }
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

  int Get(MDB_val& key, MDB_val& value, MDB_cursor_op op) {
    return error_ != 0 ? error_ : mdb_cursor_get(cursor_, &key, &value, op);
  }

 private:
  MDB_cursor* cursor_ = nullptr;
  int error_;
};

// The changes of one write transaction.
class Changes {
 public:
  Changes(const LmdbEnvironment& environment, MDB_txn* transaction)
      : environment_(environment), tables_(environment.tables()), transaction_(transaction) {}

  // Returns the pages of all objects and of the index.
  int LivePages(std::int64_t& pages) const {
    pages = 0;
    for (const MDB_dbi table : {tables_.objects, tables_.usage, tables_.order}) {
      MDB_stat stat{};
      if (const int error = mdb_stat(transaction_, table, &stat); error != 0) return error;
      pages += static_cast<std::int64_t>(stat.ms_branch_pages + stat.ms_leaf_pages +
                                         stat.ms_overflow_pages);
    }
    return 0;
  }

  // Makes the object the most recently used one; kNoSize keeps its size.
  int Use(const ObjectId& id, std::int64_t payload_bytes) {
    ObjectUsage usage;
    int error = FindUsage(id, usage);
    if (error == MDB_NOTFOUND && payload_bytes == kNoSize) return 0;
    if (error == 0) error = DeleteTurn(usage.turn);
    if (error != 0 && error != MDB_NOTFOUND) return error;
    if (payload_bytes != kNoSize) usage.payload_bytes = static_cast<std::uint64_t>(payload_bytes);
    error = NextTurn(usage.turn);
    if (error != 0) return error;
    usage.seconds = WallClockSeconds();
    MDB_val key = ValueOf(&id, kIdBytes);
    MDB_val value = ValueOf(&usage, sizeof(usage));
    error = mdb_put(transaction_, tables_.usage, &key, &value, 0);
    if (error != 0) return error;
    const Turn turn(usage.turn);
    MDB_val place = ValueOf(turn.bytes.data(), turn.bytes.size());
    return mdb_put(transaction_, tables_.order, &place, &key, 0);
  }

  // Makes the objects that there are the most recently used ones.
  int UseAll(std::span<const ObjectId> ids) {
    for (const ObjectId& id : ids) {
      if (const int error = Use(id, kNoSize); error != 0) return error;
    }
    return 0;
  }

  int Remove(const ObjectId& id) {
    ObjectUsage usage;
    int error = FindUsage(id, usage);
    if (error == 0) error = DeleteTurn(usage.turn);
    if (error != 0 && error != MDB_NOTFOUND) return error;
    MDB_val key = ValueOf(&id, kIdBytes);
    error = mdb_del(transaction_, tables_.usage, &key, nullptr);
    if (error != 0 && error != MDB_NOTFOUND) return error;
    return DeleteObject(id);
  }

  // Removes the least recently used object; MDB_NOTFOUND if there is none. Calls `evicts` before with
  // the id and the value.
  template <class Function>
  int RemoveOldest(const Function& evicts) {
    ObjectId id;
    std::uint64_t turn = 0;
    {
      Cursor cursor(transaction_, tables_.order);
      MDB_val key{}, value{};
      if (const int error = cursor.Get(key, value, MDB_FIRST); error != 0) return error;
      if (value.mv_size != kIdBytes) return kDamagedIndex;
      std::memcpy(&id, value.mv_data, kIdBytes);
      turn = TurnOf(key);
    }
    MDB_val key = ValueOf(&id, kIdBytes);
    MDB_val value{};
    if (mdb_get(transaction_, tables_.objects, &key, &value) == 0) evicts(id, value);
    if (const int error = DeleteTurn(turn); error != 0) return error;
    return Remove(id);
  }

  int Write(const ObjectId& id, const Envelope& envelope, std::span<const std::byte> payload) {
    if (const int error = DeleteObject(id); error != 0) return error;
    MDB_val key = ValueOf(&id, kIdBytes);
    MDB_val value{envelope.size() + payload.size(), nullptr};
    const int error = mdb_put(transaction_, tables_.objects, &key, &value, MDB_RESERVE);
    if (error != 0) return error;
    auto* const bytes = static_cast<std::byte*>(value.mv_data);
    std::memcpy(bytes, envelope.data(), envelope.size());
    if (!payload.empty()) std::memcpy(bytes + envelope.size(), payload.data(), payload.size());
    return Use(id, std::ssize(payload));
  }

  static constexpr std::int64_t kNoSize = -1;

 private:
  int FindUsage(const ObjectId& id, ObjectUsage& usage) const {
    MDB_val key = ValueOf(&id, kIdBytes);
    MDB_val value{};
    const int error = mdb_get(transaction_, tables_.usage, &key, &value);
    if (error != 0) return error;
    if (value.mv_size != sizeof(usage)) return kDamagedIndex;
    std::memcpy(&usage, value.mv_data, sizeof(usage));
    return 0;
  }

  int NextTurn(std::uint64_t& turn) const {
    Cursor cursor(transaction_, tables_.order);
    MDB_val key{}, value{};
    const int error = cursor.Get(key, value, MDB_LAST);
    turn = error == 0 ? TurnOf(key) + 1 : 1;
    return error == MDB_NOTFOUND ? 0 : error;
  }

  int DeleteTurn(std::uint64_t number) {
    const Turn turn(number);
    MDB_val key = ValueOf(turn.bytes.data(), turn.bytes.size());
    const int error = mdb_del(transaction_, tables_.order, &key, nullptr);
    return error == MDB_NOTFOUND ? 0 : error;
  }

  // Whether LMDB can free the object's pages is checked first: it believes their headers.
  int DeleteObject(const ObjectId& id) {
    MDB_val key = ValueOf(&id, kIdBytes);
    MDB_val value{};
    int error = mdb_get(transaction_, tables_.objects, &key, &value);
    if (error == MDB_NOTFOUND) return 0;
    if (error != 0) return error;
    const std::span bytes(static_cast<const std::byte*>(value.mv_data), value.mv_size);
    if (!environment_.IsSound(bytes, kIdBytes)) return kDamagedIndex;
    error = mdb_del(transaction_, tables_.objects, &key, nullptr);
    return error;
  }

  const LmdbEnvironment& environment_;
  const LmdbTables tables_;
  MDB_txn* const transaction_;
};

}  // namespace kvcache
