#include "store/disk/store_tables.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "store/disk/lmdb_calls.h"
#include "store/object_format.h"

namespace kvcache::store {
namespace {

constexpr std::int64_t kRemovedSeconds = std::numeric_limits<std::int64_t>::min();

struct Known {
  ObjectId id;
  ObjectUsage usage;
};

// Adds each object, with the use that `usage` and `order` agree on.
int ReadKnown(MDB_txn* transaction, const LmdbTables& tables, std::vector<Known>& all) {
  Cursor objects(transaction, tables.objects);
  Known known;
  MDB_val value{};
  int error = 0;
  while ((error = objects.Find(MDB_NEXT, RecordOf(known.id), value)) == 0) {
    const std::uint64_t bytes =
        std::max<std::uint64_t>(value.mv_size, kEnvelopeBytes) - kEnvelopeBytes;
    known.usage = {};
    ObjectId placed;
    const int found =
        GetRecord(transaction, tables.usage, RecordOf(known.id), RecordOf(known.usage));
    const int place = GetRecord(transaction, tables.order, RecordOf(KeyOfTurn(known.usage.turn)),
                                RecordOf(placed));
    for (const int result : {found, place}) {
      if (result != 0 && result != MDB_NOTFOUND && result != kDamagedIndex) return result;
    }
    if (found != 0) known.usage = {};
    if (!IsRemoved(known.usage) && (place != 0 || placed != known.id)) known.usage.turn = 0;
    known.usage.payload_bytes = bytes;
    all.push_back(known);
  }
  return error == MDB_NOTFOUND ? 0 : error;
}

}  // namespace

void MarkRemoved(ObjectUsage& usage) {
  usage.turn = 0;
  usage.seconds = kRemovedSeconds;
}

bool IsRemoved(const ObjectUsage& usage) {
  return usage.turn == 0 && usage.seconds == kRemovedSeconds;
}

int FindUse(MDB_txn* transaction, const LmdbTables& tables, const ObjectId& id,
            ObjectUsage& usage) {
  const int error = GetRecord(transaction, tables.usage, RecordOf(id), RecordOf(usage));
  return error == 0 && IsRemoved(usage) ? MDB_NOTFOUND : error;
}

TurnKey KeyOfTurn(std::uint64_t turn) {
  TurnKey key;
  for (std::size_t i = 0; i < 8; ++i) key[i] = static_cast<std::byte>(turn >> (8 * (7 - i)));
  return key;
}

std::uint64_t TurnOfKey(const TurnKey& key) {
  std::uint64_t turn = 0;
  for (const std::byte byte : key) turn = turn << 8 | std::to_integer<std::uint64_t>(byte);
  return turn;
}

void TableComparison::Add(Sum& sum, const ObjectId& id, std::uint64_t number) {
  sum.hashes += XXH3_64bits_withSeed(&id, kIdBytes, number);
  ++sum.count;
}

void TableComparison::See(const LmdbEntry& entry) {
  ObjectId id;
  ObjectUsage usage;
  const bool is_order = entry.table == kOrderTable;
  const std::span<const std::byte> name = is_order ? entry.value : entry.key;
  TurnKey turn{};
  if (name.size() != kIdBytes || (is_order && entry.key.size() != turn.size())) {
    is_sound_ = false;
    return;
  }
  std::memcpy(&id, name.data(), kIdBytes);
  if (is_order) {
    std::memcpy(turn.data(), entry.key.data(), turn.size());
    Add(places_, id, TurnOfKey(turn));
  } else if (entry.table == kObjectsTable) {
    is_sound_ = is_sound_ && entry.value_bytes >= kEnvelopeBytes;
    Add(objects_, id, entry.value_bytes - kEnvelopeBytes);
  } else if (entry.value.size() == sizeof(usage)) {
    std::memcpy(&usage, entry.value.data(), sizeof(usage));
    Add(uses_, id, usage.payload_bytes);
    if (!IsRemoved(usage)) Add(turns_, id, usage.turn);
  } else {
    is_sound_ = false;
  }
}

int RebuildTables(MDB_txn* transaction, const LmdbTables& tables) {
  std::vector<Known> all;
  if (const int error = ReadKnown(transaction, tables, all); error != 0) return error;
  std::stable_sort(all.begin(), all.end(),
                   [](const Known& a, const Known& b) { return a.usage.turn < b.usage.turn; });
  for (const MDB_dbi table : {tables.usage, tables.order}) {
    const int error = Guarded([&] { return mdb_drop(transaction, table, 0); });
    if (error != 0) return error;
  }
  std::uint64_t turn = 0;
  for (Known& known : all) {
    const bool is_removed = IsRemoved(known.usage);
    if (!is_removed) known.usage.turn = ++turn;
    int error = PutRecord(transaction, tables.usage, RecordOf(known.id), RecordOf(known.usage));
    if (error == 0 && !is_removed) {
      const TurnKey key = KeyOfTurn(turn);
      error = PutRecord(transaction, tables.order, RecordOf(key), RecordOf(known.id), MDB_APPEND);
    }
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace kvcache::store
