// How one transaction changes the tables of the disk store (store_tables.h). The functions return 0, LMDB's
// errors, or a number of lmdb_calls.h.
//
// Thread safety: that of the transaction.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kvcache/store.h"
#include "platform/wall_clock.h"
#include "store/disk/lmdb_calls.h"
#include "store/disk/lmdb_environment.h"
#include "store/disk/store_tables.h"
#include "store/object_format.h"

namespace kvcache::store {

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
      if (const int error = TableStat(transaction_, table, stat); error != 0) return error;
      pages += static_cast<std::int64_t>(stat.ms_branch_pages + stat.ms_leaf_pages +
                                         stat.ms_overflow_pages);
    }
    return 0;
  }

  // Makes the object the most recently used one; kNoSize keeps its size.
  int Use(const ObjectId& id, std::int64_t payload_bytes) {
    ObjectUsage usage;
    int error = FindUse(transaction_, tables_, id, usage);
    if (error == MDB_NOTFOUND && payload_bytes == kNoSize) return 0;
    if (error == 0) error = DeleteTurn(usage.turn);
    if (error != 0 && error != MDB_NOTFOUND) return error;
    if (payload_bytes != kNoSize) usage.payload_bytes = static_cast<std::uint64_t>(payload_bytes);
    error = NextTurn(usage.turn);
    if (error != 0) return error;
    usage.seconds = WallClockSeconds();
    error = PutRecord(transaction_, tables_.usage, RecordOf(id), RecordOf(usage));
    if (error != 0) return error;
    const TurnKey place = KeyOfTurn(usage.turn);
    return PutRecord(transaction_, tables_.order, RecordOf(place), RecordOf(id));
  }

  // Makes the objects that there are the most recently used ones.
  int UseAll(std::span<const ObjectId> ids) {
    for (const ObjectId& id : ids) {
      if (const int error = Use(id, kNoSize); error != 0) return error;
    }
    return 0;
  }

  // An object whose pages cannot be freed keeps them until the file is copied, and is marked.
  int Remove(const ObjectId& id) {
    ObjectUsage usage;
    int error = FindUsage(id, usage);
    if (error == 0) error = DeleteTurn(usage.turn);
    if (error != 0 && error != MDB_NOTFOUND) return error;
    error = DeleteRecord(transaction_, tables_.usage, RecordOf(id));
    if (error != 0 && error != MDB_NOTFOUND) return error;
    error = DeleteObject(id);
    if (error != kBadPages) return error;
    MarkRemoved(usage);
    return PutRecord(transaction_, tables_.usage, RecordOf(id), RecordOf(usage));
  }

  // Corrects the header of the object's pages, if it is wrong and the object is there. Returns 0, LMDB's errors, or
  // kBadPages.
  int Mend(const ObjectId& id) const {
    MDB_val value{};
    const int error = FindValue(transaction_, tables_.objects, RecordOf(id), value);
    return error == 0 ? MendValue(id, value) : error;
  }

  // Removes the least recently used object; MDB_NOTFOUND if there is none. Calls `evicts` before with
  // the id and the place of the value.
  template <class Function>
  int RemoveOldest(const Function& evicts) {
    ObjectId id;
    TurnKey turn{};
    int error = Cursor(transaction_, tables_.order).Get(MDB_FIRST, RecordOf(turn), RecordOf(id));
    if (error != 0) return error;
    MDB_val value{};
    error = FindValue(transaction_, tables_.objects, RecordOf(id), value);
    if (error == 0) evicts(id, value);
    if (error != 0 && error != MDB_NOTFOUND) return error;
    error = DeleteTurn(TurnOfKey(turn));
    return error != 0 ? error : Remove(id);
  }

  int Write(const ObjectId& id, const Envelope& envelope, std::span<const std::byte> payload) {
    if (const int error = DeleteObject(id); error != 0) return error;
    std::byte* bytes = nullptr;
    const int error = ReserveValue(transaction_, tables_.objects, RecordOf(id),
                                   envelope.size() + payload.size(), bytes);
    if (error != 0) return error;
    std::memcpy(bytes, envelope.data(), envelope.size());
    if (!payload.empty()) std::memcpy(bytes + envelope.size(), payload.data(), payload.size());
    return Use(id, std::ssize(payload));
  }

  static constexpr std::int64_t kNoSize = -1;

 private:
  int FindUsage(const ObjectId& id, ObjectUsage& usage) const {
    return GetRecord(transaction_, tables_.usage, RecordOf(id), RecordOf(usage));
  }

  // A turn that cannot be followed is damage: no store is used so often.
  int NextTurn(std::uint64_t& turn) const {
    TurnKey last{};
    ObjectId id;
    const int error =
        Cursor(transaction_, tables_.order).Get(MDB_LAST, RecordOf(last), RecordOf(id));
    turn = error == 0 ? TurnOfKey(last) + 1 : 1;
    if (turn == 0) return kDamagedIndex;
    return error == MDB_NOTFOUND ? 0 : error;
  }

  int DeleteTurn(std::uint64_t number) {
    const TurnKey turn = KeyOfTurn(number);
    const int error = DeleteRecord(transaction_, tables_.order, RecordOf(turn));
    return error == MDB_NOTFOUND ? 0 : error;
  }

  // LMDB believes the header of the object's pages, and would free others. A header that cannot be mended costs the
  // pages: kBadPages.
  int DeleteObject(const ObjectId& id) {
    MDB_val value{};
    const int error = FindValue(transaction_, tables_.objects, RecordOf(id), value);
    if (error == MDB_NOTFOUND) return 0;
    if (error != 0) return error;
    if (const int mended = MendValue(id, value); mended != 0) return mended;
    return DeleteRecord(transaction_, tables_.objects, RecordOf(id));
  }

  // Only the object's own envelope says that the pages are its own.
  int MendValue(const ObjectId& id, const MDB_val& value) const {
    const LmdbRun run = environment_.CheckRun(value, kIdBytes);
    if (run == LmdbRun::kSound) return 0;
    Envelope envelope{};
    if (run == LmdbRun::kUnreadable || value.mv_size < envelope.size() ||
        environment_.ReadValue(value, envelope) != 0) {
      return kBadPages;
    }
    const auto says = DescribeEnvelope(envelope);
    const bool is_own =
        says.ok() && says->id == id && says->payload_bytes == value.mv_size - envelope.size();
    return is_own && environment_.MendRun(value, kIdBytes) ? 0 : kBadPages;
  }

  const LmdbEnvironment& environment_;
  const LmdbTables tables_;
  MDB_txn* const transaction_;
};

}  // namespace kvcache::store
