// Keeps bytes under keys beyond the life of a cache: in memory, in a directory that survives the process,
// or in a Redis server that several machines share.
//
//   auto store = OpenDiskStore({.directory = cache_directory});
//   (*store)->Put(id, bytes);
//   (*store)->Get(id, [&](std::span<const std::byte> payload) { return Use(payload); });
//
// An object is a payload under a key and a fingerprint. The fingerprint names everything that decides
// the payload's bytes beside the key; another fingerprint is another namespace. A store does not know
// what a payload is. Each object has a checksum (docs/formats/store-object.md), which every read
// verifies: a damaged object is removed, and the read is a miss with a reason.
//
// A store keeps to a budget in bytes. What was used least recently goes first.
//
// Thread safety: all calls from any number of threads at once.
// Design: docs/design/store.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

// 32 bytes that name something by its content.
struct StoreHash {
  std::array<std::byte, 32> bytes{};
  friend bool operator==(const StoreHash&, const StoreHash&) = default;
  friend bool operator<(const StoreHash& a, const StoreHash& b) { return a.bytes < b.bytes; }
};

struct ObjectId {
  StoreHash fingerprint;
  StoreHash key;
  friend bool operator==(const ObjectId&, const ObjectId&) = default;
  friend bool operator<(const ObjectId& a, const ObjectId& b) {
    return a.fingerprint == b.fingerprint ? a.key < b.key : a.fingerprint < b.fingerprint;
  }
};

struct StoredObject {
  ObjectId id;
  std::int64_t payload_bytes = 0;
  std::int64_t last_used_s = 0;  // seconds since 1970, as the machine's clock said; for people
};

struct StoreStats {
  std::int64_t objects = 0;
  std::int64_t payload_bytes = 0;  // of all objects
  std::int64_t held_bytes = 0;    // of memory or of the disk: objects, index, and free space inside
  std::int64_t budget_bytes = 0;  // that held_bytes keeps to
  // Since this store was opened:
  std::int64_t evicted = 0;  // objects that made room
  std::int64_t damaged = 0;  // objects that were removed because their checksums failed
  // What was wrong with the store's file, when it was opened or since, and what was done; empty: nothing.
  std::string repair{};
};

// Where a store keeps its bytes.
enum class StoreTier : std::uint8_t { kMemory, kDisk, kRemote };
inline constexpr int kStoreTiers = 3;
using TokensByTier = std::array<std::int32_t, kStoreTiers>;
std::string_view StoreTierName(StoreTier tier);  // "memory", "disk", "remote"

class Store {
 public:
  // Is given a verified payload, which is valid during the call. It must not call the store.
  using Reader = std::function<Status(std::span<const std::byte> payload)>;
  // The same for the object ids[index], with the tier that it came from.
  using EachReader =
      std::function<Status(std::size_t index, std::span<const std::byte> payload, StoreTier tier)>;
  // Is told of an object that makes room for others: before it goes, perhaps of one that then stays, or when it
  // went. It must return soon, must not throw, and must not call the store.
  using EvictionHook = std::function<void(const ObjectId& id, std::span<const std::byte> payload)>;

  virtual ~Store() = default;

  // Calls `reader` with the object's payload and returns what it returns. The object counts as used.
  // Errors without a call: kNotFound if there is no such object; kCorrupt if it is damaged, with the
  // reason, and it is removed; kIo.
  virtual Status Get(const ObjectId& id, const Reader& reader) = 0;
  // Calls `reader` with the payload of each object, in order, and stops at the first error, which it
  // returns. A remote store has several reads under way at once.
  virtual Status GetEach(std::span<const ObjectId> ids, const EachReader& reader);
  // Calls `reader` with the object's payload in each of several stores that has it. Errors as for Get, if
  // none has it.
  virtual Status GetCopies(const ObjectId& id, const Reader& reader) { return Get(id, reader); }
  // Stores a copy of `payload`, in place of an earlier object of this id. Objects that were used
  // longest ago make room. Returns after the object is safe from the end of the process. Errors:
  // kCacheFull for an object larger than the budget; kIo, in the operating system's words. An earlier
  // object of the id is then unchanged or gone.
  virtual Status Put(const ObjectId& id, std::span<const std::byte> payload) = 0;
  // Returns whether there is an object, without reading its payload. Errors: kIo.
  virtual Result<bool> Contains(const ObjectId& id) = 0;
  // Marks objects as used, the last of `ids` as the most recent one. Unknown ones are ignored.
  virtual void Touch(std::span<const ObjectId> ids) = 0;
  // Removes the object. Returns Ok if there is none. Errors: kIo.
  virtual Status Remove(const ObjectId& id) = 0;
  // Returns all objects, the least recently used first. Errors: kIo, kOutOfMemory.
  virtual Result<std::vector<StoredObject>> List() = 0;
  // Returns Usage, with `objects` and `payload_bytes` counted. Errors: those of List and Usage.
  virtual Result<StoreStats> Stats();
  // Returns what is known without counting, with 0 for `objects` and `payload_bytes` where counting takes long: the
  // cost does not grow with the number of objects. Errors: kIo, kOutOfMemory.
  virtual Result<StoreStats> Usage() = 0;
  // Returns where the bytes are; of several stores, the first.
  virtual StoreTier tier() const = 0;
  // Sets the function that is told of evictions; null: nobody is. A store that does not know of them ignores
  // this. Returns after the last call of the function before.
  virtual void SetEvictionHook(EvictionHook /*hook*/) {}
  // Returns when nothing waits to be written.
  virtual void Flush() {}
};

inline constexpr std::int64_t kDefaultMemoryStoreBytes = std::int64_t{256} << 20;
inline constexpr std::int64_t kDefaultDiskStoreBytes = std::int64_t{10} << 30;
// The smallest budget of a disk store: its index needs pages of its own.
inline constexpr std::int64_t kMinDiskStoreBytes = std::int64_t{1} << 20;

// A store in this process's memory. Its budget may change at any time.
class MemoryStore : public Store {
 public:
  // Writes a payload into the memory that keeps it.
  using Filler = std::function<Status(std::span<std::byte> payload)>;

  // Sets the budget, from 0 on. Objects that were used longest ago go until the others fit. Returns the bytes
  // that are held then: those that are being read are counted until the reading ends.
  virtual std::int64_t SetBudget(std::int64_t bytes) = 0;
  // Returns the bytes of all objects and their index. They are never above the budget, except while an object
  // is read that had to go.
  virtual std::int64_t held_bytes() const = 0;
  // Returns whether an object of this size can be stored at all.
  virtual bool HasRoomFor(std::size_t payload_bytes) const = 0;
  // As Put for a payload that `fill` writes, which is not copied again. Errors also: those of `fill`.
  virtual Status PutFilled(const ObjectId& id, std::size_t payload_bytes, const Filler& fill) = 0;
};

// Returns an empty one. Errors: kInvalidArgument for a budget below one byte.
Result<std::unique_ptr<MemoryStore>> MakeMemoryStore(
    std::int64_t budget_bytes = kDefaultMemoryStoreBytes);

struct DiskStoreOptions {
  std::string directory;  // is made, for this user alone, if it does not exist
  std::int64_t budget_bytes = kDefaultDiskStoreBytes;
  // The longest wait for a lock that another process keeps, and for one that reads what no page is free without: that
  // process may be stopped. After a wait in vain there is none for a while that doubles from 1 to 30 seconds.
  int max_wait_ms = 3000;
};

// Opens a store in a directory. Several processes may have it open at once, and several stores of one
// process. It survives the end of a process and a loss of power at any time; the newest objects may be
// lost then. A file whose index is damaged is discarded, with all of its objects. A file that
// was removed is made anew by the next write. If that fails, writes fail at once with the reason for a while
// that doubles from 1 to 30 seconds; reads too, if LMDB gave the file up after an error of the disk.
// Errors: kInvalidArgument for a budget below kMinDiskStoreBytes, or for a directory that another user
// owns or can write to; kIo and kNotFound, in the operating system's words. All name the directory.
Result<std::unique_ptr<Store>> OpenDiskStore(const DiskStoreOptions& options);

// A store in a directory that may not be open yet.
struct LateDiskStore {
  std::unique_ptr<Store> store;
  Status problem;  // why it is not open; Ok if it is
};

// As OpenDiskStore, for programs that run for long: a directory that cannot be opened now, as while another process
// opens it and is stopped, is tried again by later calls, after a while that doubles from 1 to 30 seconds. Until then
// calls return the reason. Errors: kInvalidArgument.
Result<LateDiskStore> OpenDiskStoreLater(const DiskStoreOptions& options);

struct RedisStoreOptions {
  // redis://[[user]:password@]host[:port][/db], of a server or of any node of a cluster.
  std::string url;
  // No call takes longer, except that GetEach may take as long for each object. An operation that failed
  // closes its connection, and calls fail at once for a while that doubles, up to `max_pause_ms`.
  int timeout_ms = 1000;
  int max_pause_ms = 2000;
  // An object that was not used for as long is removed by the server; 0: never.
  std::int64_t ttl_s = std::int64_t{7} * 24 * 3600;
};

// Returns a store in a Redis server, version 6.2 or later, or in a Redis cluster. Connects at the first
// call; a server that is away is tried again later. Get returns kIo then, with the reason. The server's
// own limit is the budget: it refuses objects, or removes others, as its configuration says. Errors:
// kInvalidArgument for another URL or options out of range.
Result<std::unique_ptr<Store>> OpenRedisStore(const RedisStoreOptions& options);

// Whether a tiered store moves objects between its stores.
enum class MoveObjects : std::uint8_t { kYes, kNo };

// Returns several stores as one, the fastest first. Get takes the first that has the object; Put writes to
// all; an error of one store does not keep the others from being used, and is returned if no other store
// has the object, or if it was not written everywhere. Stats and List are those of the first store.
//
// With kYes it also moves objects, in threads of its own: what a later store gave is copied to the earlier
// ones, and what an earlier store evicts is written to the next one if no later one has it. At most 64 MiB
// wait for each, or one larger object; what has no room is not moved. The destructor waits until everything
// is moved. Errors: kInvalidArgument for none.
Result<std::unique_ptr<Store>> MakeTieredStore(std::vector<std::shared_ptr<Store>> tiers,
                                               MoveObjects moves = MoveObjects::kYes);

// Removes what is damaged, and the least recently used objects beyond the budget, and writes the others to
// a file without free space in it. What other processes store meanwhile is in it too, or they get an error. Returns the
// store's state afterwards, with what was removed. Errors: those of OpenDiskStore and of Store::List; kIo.
Result<StoreStats> CollectGarbage(const DiskStoreOptions& options);

}  // namespace kvcache
