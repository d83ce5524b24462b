// The tables of a disk store: what their records are, whether they say the same, and how they are made anew.
//
//   objects   id -> envelope, payload
//   usage     id -> turn of its last use, bytes, seconds
//   order     turn, big-endian -> id
//
// One transaction changes all three. A flipped bit can still part them: an object that is in no order would
// never be evicted.
//
// Thread safety: free functions and values; that of the transaction.
#pragma once

#include <lmdb.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/store.h"
#include "store/disk/lmdb_check.h"

namespace kvcache::store {

// The tables in a transaction.
struct LmdbTables {
  MDB_dbi objects = 0;
  MDB_dbi usage = 0;
  MDB_dbi order = 0;
};
inline constexpr const char* kObjectsTable = "objects";
inline constexpr const char* kUsageTable = "usage";
inline constexpr const char* kOrderTable = "order";

inline constexpr std::size_t kIdBytes = sizeof(ObjectId);
static_assert(kIdBytes == 64);

struct ObjectUsage {
  std::uint64_t turn = 0;
  std::uint64_t payload_bytes = 0;
  std::int64_t seconds = 0;
};

// An object that was removed, but whose pages LMDB cannot free, is in `objects` and, with this use, in `usage` until the
// file is copied. It is in no order, and nobody finds it. No flipped bit makes such a use.
void MarkRemoved(ObjectUsage& usage);
bool IsRemoved(const ObjectUsage& usage);

// Finds the use of an object; MDB_NOTFOUND if it was removed. Returns 0 or a number of lmdb_calls.h.
int FindUse(MDB_txn* transaction, const LmdbTables& tables, const ObjectId& id, ObjectUsage& usage);

// LMDB orders keys by their bytes.
using TurnKey = std::array<std::byte, 8>;
TurnKey KeyOfTurn(std::uint64_t turn);
std::uint64_t TurnOfKey(const TurnKey& key);

// The bytes of a value, for records of fixed size.
template <class Value>
std::span<const std::byte> RecordOf(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class Value>
std::span<std::byte> RecordOf(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Compares the tables, in one pass over all of their entries in any order.
class TableComparison {
 public:
  void See(const LmdbEntry& entry);
  // Returns whether each object has its size in `usage` and its place in `order`, and whether there is nothing
  // else. Wrong with a chance of one in 2^64.
  bool Agree() const { return is_sound_ && objects_ == uses_ && turns_ == places_; }

 private:
  // A sum of hashes and their number: the order of what is added does not matter.
  struct Sum {
    std::uint64_t hashes = 0;
    std::uint64_t count = 0;
    friend bool operator==(const Sum&, const Sum&) = default;
  };
  static void Add(Sum& sum, const ObjectId& id, std::uint64_t number);

  bool is_sound_ = true;
  Sum objects_, uses_;  // ids and sizes
  Sum turns_, places_;  // ids and turns
};

// Makes `usage` and `order` anew for the objects that there are. What both said of an object stays; an object
// that they do not agree on counts as the least recently used one. Returns 0 or a number of lmdb_calls.h.
// Throws std::bad_alloc.
int RebuildTables(MDB_txn* transaction, const LmdbTables& tables);

}  // namespace kvcache::store
