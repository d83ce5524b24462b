// A store in a directory, over LMDB. Three tables change in one transaction, so that each object is whole
// or absent whenever the process ends:
//
//   objects   id -> envelope, payload
//   usage     id -> turn, bytes, seconds
//   order     turn -> id               the least recently used first
//
// A turn is a number that grows with every use; a clock that jumps changes nothing. The budget is the
// size of the map: LMDB never lets the file grow beyond it. Objects may take kLargestShare of it. The
// rest is the slack that LMDB needs, because a transaction writes changed pages to free ones.
#include "store/disk_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "store/lmdb_changes.h"
#include "store/lmdb_check.h"
#include "store/lmdb_environment.h"
#include "store/object_format.h"
#include "store/retry_pause.h"

namespace kvcache {
namespace {

constexpr std::int64_t kSlackShare = 8;     // one part in eight
constexpr std::int64_t kIndexPages = 16;    // that one object can add to the index
constexpr int kMostAttempts = 24;           // to find room in one run of pages
constexpr std::size_t kMostTouched = 4096;  // uses that wait to be written
constexpr std::size_t kMostValueBytes = std::size_t{0xffffffff} - kEnvelopeBytes;
constexpr std::chrono::seconds kFirstReopenPause{1};  // after the file could not be opened again
constexpr std::chrono::seconds kLongestReopenPause{30};

// Verifies a value of the table of objects, a large one in a thread of its own.
std::future<Result<std::span<const std::byte>>> VerifyAside(const ObjectId& id,
                                                            const MDB_val& value) {
  constexpr std::size_t kLarge = std::size_t{512} << 10;
  const std::span bytes(static_cast<const std::byte*>(value.mv_data), value.mv_size);
  const auto verify = [id, bytes] { return OpenEnvelope(id, bytes); };
  try {
    if (bytes.size() >= kLarge) return std::async(std::launch::async, verify);
  } catch (const std::system_error&) {
    // There are too many threads: this one verifies it.
  }
  return std::async(std::launch::deferred, verify);
}

class DiskStore final : public Store {
 public:
  DiskStore(std::shared_ptr<LmdbEnvironment> environment, std::int64_t budget_bytes,
            SteadyClock clock)
      : clock_(std::move(clock)),
        environment_(std::move(environment)),
        budget_bytes_(budget_bytes) {}

  ~DiskStore() override { WriteTouched(); }

  Status Get(const ObjectId& id, const Reader& reader) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, Environment());
    Status status;
    bool is_damaged = false;
    const int error = environment->Read([&](MDB_txn* transaction) {
      MDB_val key = ValueOf(&id, kIdBytes);
      MDB_val value{};
      const int result = mdb_get(transaction, environment->tables().objects, &key, &value);
      if (result != 0) return result;
      const auto payload =
          OpenEnvelope(id, {static_cast<const std::byte*>(value.mv_data), value.mv_size});
      is_damaged = !payload.ok();
      status = is_damaged ? payload.status() : reader(*payload);
      return 0;
    });
    if (error == MDB_NOTFOUND) return {StatusCode::kNotFound, "the store has no such object"};
    if (error != 0) return environment->Error("read", error);
    if (is_damaged) {
      ++damaged_;
      (void)Remove(id).ok();  // a later read tries again
    } else {
      Touch(std::span(&id, 1));
    }
    return status;
  }

  // While one object is used, the next one is verified on another processor.
  Status GetEach(std::span<const ObjectId> ids, const EachReader& reader) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, Environment());
    Status status;
    const ObjectId* damaged = nullptr;
    std::size_t done = 0;
    const int error = environment->Read([&](MDB_txn* transaction) {
      std::future<Result<std::span<const std::byte>>> next;
      const auto find = [&](const ObjectId& id) {
        MDB_val key = ValueOf(&id, kIdBytes);
        MDB_val value{};
        const int result = mdb_get(transaction, environment->tables().objects, &key, &value);
        if (result == 0) next = VerifyAside(id, value);
        return result;
      };
      int result = ids.empty() ? 0 : find(ids[0]);
      for (; done < ids.size() && result == 0; ++done) {
        const auto payload = next.get();
        if (!payload.ok()) {
          damaged = &ids[done];
          status = payload.status();
          return 0;
        }
        if (done + 1 < ids.size()) result = find(ids[done + 1]);
        status = reader(done, *payload, StoreTier::kDisk);
        if (!status.ok()) return 0;
      }
      return result;
    });
    Touch(ids.first(done));
    if (error == MDB_NOTFOUND) return {StatusCode::kNotFound, "the store has no such object"};
    if (error != 0) return environment->Error("read", error);
    if (damaged != nullptr) {
      ++damaged_;
      (void)Remove(*damaged).ok();
    }
    return status;
  }

  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    KVCACHE_ASSIGN_OR_RETURN(auto environment, InPlace());
    int error = TryPut(*environment, id, payload);
    if (IsDamage(error)) {
      KVCACHE_ASSIGN_OR_RETURN(environment, Discard(environment));
      error = TryPut(*environment, id, payload);
    }
    return error == 0 ? Status::Ok() : Fail(*environment, error, payload.size());
  }

  Result<bool> Contains(const ObjectId& id) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, Environment());
    const int error = environment->Read([&](MDB_txn* transaction) {
      MDB_val key = ValueOf(&id, kIdBytes);
      MDB_val value{};
      return mdb_get(transaction, environment->tables().usage, &key, &value);
    });
    if (error == MDB_NOTFOUND) return false;
    if (error != 0) return environment->Error("read", error);
    return true;
  }

  void Touch(std::span<const ObjectId> ids) override {
    try {
      const std::lock_guard lock(mutex_);
      if (touched_.size() + ids.size() > kMostTouched) return;
      touched_.insert(touched_.end(), ids.begin(), ids.end());
    } catch (const std::bad_alloc&) {
      return;  // the order of eviction is a little older
    }
  }

  Status Remove(const ObjectId& id) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, InPlace());
    const int error = environment->Write(
        [&](MDB_txn* transaction) { return Changes(*environment, transaction).Remove(id); });
    if (IsDamage(error)) return Discard(environment).status();
    return error == 0 ? Status::Ok() : environment->Error("write", error);
  }

  Result<std::vector<StoredObject>> List() override {
    WriteTouched();
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, Environment());
    std::vector<std::pair<std::uint64_t, StoredObject>> found;
    const int error = environment->Read([&](MDB_txn* transaction) {
      Cursor cursor(transaction, environment->tables().usage);
      MDB_val key{}, value{};
      int result = 0;
      while ((result = cursor.Get(key, value, MDB_NEXT)) == 0) {
        ObjectUsage usage;
        if (key.mv_size != kIdBytes || value.mv_size != sizeof(usage)) return kDamagedIndex;
        StoredObject object;
        std::memcpy(&object.id, key.mv_data, kIdBytes);
        std::memcpy(&usage, value.mv_data, sizeof(usage));
        object.payload_bytes = static_cast<std::int64_t>(usage.payload_bytes);
        object.last_used_s = usage.seconds;
        found.emplace_back(usage.turn, object);
      }
      return result == MDB_NOTFOUND ? 0 : result;
    });
    if (error != 0) return environment->Error("read", error);
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<StoredObject> all;
    all.reserve(found.size());
    for (const auto& [turn, object] : found) all.push_back(object);
    return all;
  }

  Result<StoreStats> Stats() override {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, List());
    KVCACHE_ASSIGN_OR_RETURN(StoreStats stats, Usage());
    stats.objects = std::ssize(all);
    for (const StoredObject& object : all) stats.payload_bytes += object.payload_bytes;
    return stats;
  }
  Result<StoreStats> Usage() override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, Environment());
    return StoreStats{.held_bytes = environment->FileBytes(),
                      .budget_bytes = budget_bytes_,
                      .evicted = evicted_,
                      .damaged = damaged_};
  }

  // Removes what is damaged or beyond the budget, and compacts the file.
  Status CollectGarbage() {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, List());
    for (const StoredObject& object : all) {
      (void)Get(object.id, [](std::span<const std::byte>) { return Status::Ok(); }).ok();
    }
    (void)TakeTouched();  // reading all of them was no use
    return Shrink();
  }

  bool IsBeyondBudget() { return Current()->FileBytes() > budget_bytes_; }

  // Removes what is beyond the budget, and compacts the file.
  Status Shrink() {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, InPlace());
    const int error = environment->Write([&](MDB_txn* transaction) {
      Changes changes(*environment, transaction);
      return MakeRoom(changes, MostPages(*environment));
    });
    if (error != 0) return environment->Error("write", error);
    KVCACHE_RETURN_IF_ERROR(environment->Compact());
    return InPlace().status();
  }
  StoreTier tier() const override { return StoreTier::kDisk; }
  void SetEvictionHook(EvictionHook hook) override {
    const std::lock_guard lock(hook_mutex_);
    evicts_ = std::move(hook);
  }

 private:
  // Returns the environment in use, or a new one after LMDB has given that up. Errors: those of InPlace.
  Result<std::shared_ptr<LmdbEnvironment>> Environment() {
    auto environment = Current();
    if (environment->IsOpen()) return environment;
    return InPlace();
  }

  std::shared_ptr<LmdbEnvironment> Current() {
    const std::lock_guard lock(mutex_);
    return environment_;
  }

  // Returns the environment of the file that has the name now: another process may have discarded a
  // damaged one. Errors: the directory is gone; those of LmdbEnvironment::Open. After an error it makes no
  // attempt for a while, and returns the same error.
  Result<std::shared_ptr<LmdbEnvironment>> InPlace() {
    const std::lock_guard one_at_a_time(opening_mutex_);
    const auto environment = Current();
    if (environment->IsInPlace()) {
      pause_.Worked();
      return environment;
    }
    if (pause_.Left(clock_()) > RetryPause::Clock::duration::zero()) return problem_;
    const bool was_removed = environment->IsOpen();
    auto opened =
        LmdbEnvironment::Open(environment->directory(), budget_bytes_, MissingDirectory::kRefuse);
    if (!opened.ok()) {
      pause_.Failed(clock_());
      problem_ = std::move(opened).TakeStatus().WithContext(
          was_removed ? "the store's file was removed"
                      : "the store's file is opened again after an error");
      return problem_;
    }
    pause_.Worked();
    const std::lock_guard lock(mutex_);
    environment_ = *opened;
    return environment_;
  }

  std::int64_t MostPages(const LmdbEnvironment& environment) const {
    const std::int64_t bytes = std::min(budget_bytes_, environment.map_bytes());
    return (bytes - bytes / kSlackShare) / static_cast<std::int64_t>(environment.page_bytes());
  }

  // Removes objects until the others and the index have at most `pages`.
  int MakeRoom(Changes& changes, std::int64_t pages) {
    for (;;) {
      std::int64_t live = 0;
      if (const int error = changes.LivePages(live); error != 0) return error;
      if (live <= pages) return 0;
      const int error = changes.RemoveOldest(
          [&](const ObjectId& id, const MDB_val& value) { TellOfEviction(id, value); });
      if (error == MDB_NOTFOUND) return 0;
      if (error != 0) return error;
      ++evicted_;
    }
  }

  // A damaged object goes without a word.
  void TellOfEviction(const ObjectId& id, const MDB_val& value) {
    const std::lock_guard lock(hook_mutex_);
    if (!evicts_) return;
    const auto payload =
        OpenEnvelope(id, {static_cast<const std::byte*>(value.mv_data), value.mv_size});
    if (payload.ok()) evicts_(id, *payload);
  }

  static bool IsDamage(int error) {
    return error == MDB_CORRUPTED || error == MDB_PAGE_NOTFOUND || error == MDB_CURSOR_FULL;
  }

  // Starts with an empty file: an object that cannot be removed safely would be in the way for ever.
  Result<std::shared_ptr<LmdbEnvironment>> Discard(
      const std::shared_ptr<LmdbEnvironment>& damaged) {
    KVCACHE_RETURN_IF_ERROR(damaged->RemoveFile());
    ++damaged_;
    return InPlace();
  }

  int TryPut(LmdbEnvironment& environment, const ObjectId& id, std::span<const std::byte> payload) {
    const std::int64_t most = MostPages(environment);
    const std::int64_t needed = kIndexPages + LmdbValuePages(kEnvelopeBytes + payload.size(),
                                                             kIdBytes, environment.page_bytes());
    if (needed > most || payload.size() > kMostValueBytes) return MDB_BAD_VALSIZE;
    const Envelope envelope = MakeEnvelope(id, payload);
    const std::vector<ObjectId> touched = TakeTouched();
    int error = 0;
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      error = environment.Write([&](MDB_txn* transaction) {
        Changes changes(environment, transaction);
        if (const int used = changes.UseAll(touched); used != 0) return used;
        if (const int made = MakeRoom(changes, most - needed); made != 0) return made;
        return changes.Write(id, envelope, payload);
      });
      if (error != MDB_MAP_FULL) break;
      // No run of free pages is long enough, or those that were freed are not free yet. More objects
      // go, in a transaction of their own.
      const int freed = environment.Write([&](MDB_txn* transaction) {
        Changes changes(environment, transaction);
        std::int64_t live = 0;
        if (const int result = changes.LivePages(live); result != 0) return result;
        return MakeRoom(changes, std::max<std::int64_t>(0, live - needed));
      });
      if (freed != 0 && freed != MDB_MAP_FULL) return freed;
    }
    return error;
  }

  Status Fail(const LmdbEnvironment& environment, int error, std::size_t payload_bytes) const {
    if (error == MDB_BAD_VALSIZE || error == MDB_MAP_FULL) {
      return {StatusCode::kCacheFull,
              StrCat("an object of ", payload_bytes,
                     " bytes does not fit into the store's budget of ", budget_bytes_)};
    }
    return environment.Error("write", error);
  }

  std::vector<ObjectId> TakeTouched() {
    const std::lock_guard lock(mutex_);
    return std::exchange(touched_, {});
  }

  void WriteTouched() {
    const std::vector<ObjectId> touched = TakeTouched();
    if (touched.empty()) return;
    const auto environment = Environment();
    if (!environment.ok() || !(*environment)->IsInPlace()) return;
    (void)(*environment)->Write([&](MDB_txn* transaction) {
      return Changes(**environment, transaction).UseAll(touched);
    });
  }

  std::mutex hook_mutex_;  // held while the hook is called
  EvictionHook evicts_;
  std::mutex opening_mutex_;  // held while the file is looked for and opened again
  const SteadyClock clock_;
  RetryPause pause_{kFirstReopenPause, kLongestReopenPause};
  Status problem_;  // of the last attempt
  std::mutex mutex_;
  std::shared_ptr<LmdbEnvironment> environment_;
  std::vector<ObjectId> touched_;  // that no transaction has written yet
  const std::int64_t budget_bytes_;
  std::atomic<std::int64_t> evicted_ = 0;
  std::atomic<std::int64_t> damaged_ = 0;
};

Status CheckBudget(const DiskStoreOptions& options) {
  if (options.budget_bytes >= kLeastDiskStoreBytes) return Status::Ok();
  return InvalidArgument(StrCat("the disk store's budget is ", options.budget_bytes,
                                " bytes; must be at least ", kLeastDiskStoreBytes));
}

}  // namespace

Result<std::unique_ptr<Store>> OpenDiskStoreWith(const DiskStoreOptions& options,
                                                 SteadyClock clock) {
  KVCACHE_RETURN_IF_ERROR(CheckBudget(options));
  KVCACHE_ASSIGN_OR_RETURN(
      auto environment,
      LmdbEnvironment::Open(options.directory, options.budget_bytes, MissingDirectory::kMake));
  auto store =
      std::make_unique<DiskStore>(std::move(environment), options.budget_bytes, std::move(clock));
  // An earlier budget was larger. If the file cannot shrink now, it does at another time.
  if (store->IsBeyondBudget()) (void)store->Shrink().ok();
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> OpenDiskStore(const DiskStoreOptions& options) {
  return OpenDiskStoreWith(options, &std::chrono::steady_clock::now);
}

Result<StoreStats> CollectGarbage(const DiskStoreOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckBudget(options));
  KVCACHE_ASSIGN_OR_RETURN(
      auto environment,
      LmdbEnvironment::Open(options.directory, options.budget_bytes, MissingDirectory::kMake));
  DiskStore store(std::move(environment), options.budget_bytes, &std::chrono::steady_clock::now);
  KVCACHE_RETURN_IF_ERROR(store.CollectGarbage());
  return store.Stats();
}

}  // namespace kvcache
