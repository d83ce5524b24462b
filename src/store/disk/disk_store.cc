// A store in a directory, over LMDB. Its tables (store_tables.h) change in one transaction, so that each object is
// whole or absent whenever the process ends.
//
// A turn is a number that grows with every use; a clock that jumps changes nothing. The budget is the
// size of the map: LMDB never lets the file grow beyond it. Objects may take kLargestShare of it. The
// rest is the slack that LMDB needs, because a transaction writes changed pages to free ones.
#include "store/disk/disk_store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "store/disk/lmdb_changes.h"
#include "store/disk/lmdb_check.h"
#include "store/disk/lmdb_environment.h"
#include "store/disk/lmdb_value.h"
#include "store/disk/object_reader.h"
#include "store/disk/store_file.h"
#include "store/object_format.h"

namespace kvcache::store {
namespace {

constexpr std::int64_t kSlackShare = 8;    // one part in eight
constexpr std::int64_t kIndexPages = 16;   // that one object can add to the index
constexpr int kMaxAttempts = 24;           // to find room in one run of pages
constexpr std::size_t kMaxTouched = 4096;  // uses that wait to be written
constexpr std::size_t kMaxValueBytes = std::size_t{0xffffffff} - kEnvelopeBytes;
constexpr int kMaxCompactions = 8;  // of files that other processes replace meanwhile

class DiskStore final : public Store {
 public:
  DiskStore(const DiskStoreOptions& options, SteadyClock clock)
      : max_wait_(options.max_wait_ms),
        budget_bytes_(options.budget_bytes),
        file_(options.directory, {.map_bytes = options.budget_bytes, .max_wait = max_wait_},
              std::move(clock)) {}

  ~DiskStore() override { WriteTouched(); }

  Status Get(const ObjectId& id, const Reader& reader) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.Environment());
    ObjectReader object;
    const auto payload = object.Read(*environment, id);
    if (!payload.ok()) return Forget(id, payload.status());
    if (!object.has_sound_pages()) Mend(id);
    Touch(std::span(&id, 1));
    return reader(*payload);
  }

  // While one object is used, the next one is read and verified on another processor.
  Status GetEach(std::span<const ObjectId> ids, const EachReader& reader) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.Environment());
    std::array<ObjectReader, 2> objects;
    ObjectRead next;
    const auto read = [&](std::size_t index) {
      return [&, index] { return objects[index % 2].Read(*environment, ids[index]); };
    };
    if (!ids.empty()) next = std::async(std::launch::deferred, read(0));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto payload = next.get();
      if (!payload.ok()) {
        Touch(ids.first(i));
        return Forget(ids[i], payload.status());
      }
      if (!objects[i % 2].has_sound_pages()) Mend(ids[i]);
      if (i + 1 < ids.size()) next = Start(IsLarge(*environment, ids[i + 1]), read(i + 1));
      Status status = reader(i, *payload, StoreTier::kDisk);
      if (status.ok()) continue;
      Touch(ids.first(i));
      return status;
    }
    Touch(ids);
    return Status::Ok();
  }

  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    return Change([&](LmdbEnvironment& environment) { return TryPut(environment, id, payload); },
                  payload.size());
  }

  Result<bool> Contains(const ObjectId& id) override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.Environment());
    const int error = environment->Read([&](MDB_txn* transaction) {
      ObjectUsage usage;
      return FindUse(transaction, environment->tables(), id, usage);
    });
    if (error == MDB_NOTFOUND) return false;
    if (error != 0) return environment->Error("read", error);
    return true;
  }

  void Touch(std::span<const ObjectId> ids) override {
    try {
      const std::lock_guard lock(mutex_);
      if (touched_.size() + ids.size() > kMaxTouched) return;
      touched_.insert(touched_.end(), ids.begin(), ids.end());
    } catch (const std::bad_alloc&) {
      return;  // the order of eviction is a little older
    }
  }

  Status Remove(const ObjectId& id) override {
    return Change([&](LmdbEnvironment& environment) {
      return environment.Write(
          [&](MDB_txn* transaction) { return Changes(environment, transaction).Remove(id); });
    });
  }

  Result<std::vector<StoredObject>> List() override {
    WriteTouched();
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.Environment());
    std::vector<std::pair<std::uint64_t, StoredObject>> found;
    const int error = environment->Read([&](MDB_txn* transaction) {
      Cursor cursor(transaction, environment->tables().usage);
      StoredObject object;
      ObjectUsage usage;
      int result = 0;
      while ((result = cursor.Get(MDB_NEXT, RecordOf(object.id), RecordOf(usage))) == 0) {
        if (IsRemoved(usage)) continue;
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

  Result<StoreStats> Usage() override {
    KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.Environment());
    return StoreStats{.held_bytes = environment->FileBytes(),
                      .budget_bytes = budget_bytes_,
                      .evicted = evicted_,
                      .damaged = damaged_,
                      .repair = file_.repair()};
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

  // Opens the file now.
  Status Open() { return file_.InPlace().status(); }

  bool IsBeyondBudget() { return file_.Current()->FileBytes() > budget_bytes_; }

  // Removes what is beyond the budget, and compacts the file.
  Status Shrink() {
    for (int attempt = 0; attempt < kMaxCompactions; ++attempt) {
      KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.InPlace());
      const int error = WriteEvicting(*environment, [&](Changes& changes, std::int64_t& evicted) {
        return EnsureCapacity(*environment, changes, MaxPages(*environment), evicted);
      });
      if (error == kFileMoved) continue;
      if (error != 0) return environment->Error("write", error);
      KVCACHE_ASSIGN_OR_RETURN(const bool is_replaced, environment->Compact());
      if (is_replaced) return file_.InPlace().status();
    }
    return {StatusCode::kIo, "other processes replace the store's file again and again"};
  }
  StoreTier tier() const override { return StoreTier::kDisk; }
  void SetEvictionHook(EvictionHook hook) override {
    const std::lock_guard lock(hook_mutex_);
    evicts_ = std::move(hook);
  }

 private:
  // Writes with `write`, and once more if the file was replaced or had to be discarded.
  Status Change(const std::function<int(LmdbEnvironment&)>& write, std::size_t payload_bytes = 0) {
    for (bool is_first = true;; is_first = false) {
      KVCACHE_ASSIGN_OR_RETURN(const auto environment, file_.InPlace());
      const int error = write(*environment);
      if (error == 0) return Status::Ok();
      if (IsDamage(error)) KVCACHE_RETURN_IF_ERROR(Discard(*environment, error));
      const bool is_gone = IsDamage(error) || error == kFileMoved || error == kMappingFault;
      if (!is_first || !is_gone) return Fail(*environment, error, payload_bytes);
    }
  }

  std::int64_t MaxPages(const LmdbEnvironment& environment) const {
    const std::int64_t bytes = std::min(budget_bytes_, environment.map_bytes());
    return (bytes - bytes / kSlackShare) / static_cast<std::int64_t>(environment.page_bytes());
  }

  // Writes, and counts what was evicted if that is written.
  template <class Body>
  int WriteEvicting(LmdbEnvironment& environment, const Body& body) {
    std::int64_t evicted = 0;
    const int error = environment.Write([&](MDB_txn* transaction) {
      Changes changes(environment, transaction);
      return body(changes, evicted);
    });
    if (error == 0) evicted_ += evicted;
    return error;
  }

  // Removes objects until the others and the index have at most `pages`.
  int EnsureCapacity(const LmdbEnvironment& environment, Changes& changes, std::int64_t pages,
                     std::int64_t& evicted) {
    for (;;) {
      std::int64_t live = 0;
      if (const int error = changes.LivePages(live); error != 0) return error;
      if (live <= pages) return 0;
      const int error = changes.RemoveOldest([&](const ObjectId& id, const MDB_val& value) {
        TellOfEviction(environment, id, value);
      });
      if (error == MDB_NOTFOUND) return 0;
      if (error != 0) return error;
      ++evicted;
    }
  }

  // A damaged object goes without a word.
  void TellOfEviction(const LmdbEnvironment& environment, const ObjectId& id,
                      const MDB_val& value) {
    const std::lock_guard lock(hook_mutex_);
    ObjectReader object;
    if (!evicts_ || object.Copy(environment, value) != 0) return;
    const auto payload = object.Verify(id);
    if (payload.ok()) evicts_(id, *payload);
  }

  // Removes an object that is damaged. Returns what was wrong.
  Status Forget(const ObjectId& id, Status status) {
    if (status.code() != StatusCode::kCorrupt) return status;
    const std::int64_t before = discarded_;
    (void)Remove(id).ok();  // a later read tries again
    if (discarded_ == before) ++damaged_;
    return status;
  }

  // Corrects the header of the pages of an object that is whole. If that fails, its removal tries again.
  void Mend(const ObjectId& id) {
    const auto environment = file_.InPlace();
    if (!environment.ok()) return;
    const int error = (*environment)->Write([&](MDB_txn* transaction) {
      return Changes(**environment, transaction).Mend(id);
    });
    if (error == 0) file_.AddRepair("headers of objects' pages were wrong, and were corrected");
  }

  static bool IsLarge(LmdbEnvironment& environment, const ObjectId& id) {
    constexpr std::uint64_t kLarge = std::uint64_t{512} << 10;
    ObjectUsage usage;
    const int error = environment.Read([&](MDB_txn* transaction) {
      return GetRecord(transaction, environment.tables().usage, RecordOf(id), RecordOf(usage));
    });
    return error == 0 && usage.payload_bytes >= kLarge;
  }

  // Starts to read a large object in a thread of its own; a small one is read when it is needed.
  using ObjectRead = std::future<Result<std::span<const std::byte>>>;
  template <class Read>
  static ObjectRead Start(bool is_large, const Read& read) {
    try {
      if (is_large) return std::async(std::launch::async, read);
    } catch (const std::system_error&) {
      // There are too many threads.
    }
    return std::async(std::launch::deferred, read);
  }

  static bool IsDamage(int error) {
    // MDB_BAD_TXN: LMDB found it without a word.
    return error == MDB_CORRUPTED || error == MDB_PAGE_NOTFOUND || error == MDB_CURSOR_FULL ||
           error == MDB_BAD_TXN;
  }

  // LMDB cannot follow the index: all objects go, since each one could be in the way for ever.
  Status Discard(LmdbEnvironment& damaged, int error) {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t lost, file_.Discard(damaged, error));
    damaged_ += lost;
    ++discarded_;
    return Status::Ok();
  }

  int TryPut(LmdbEnvironment& environment, const ObjectId& id, std::span<const std::byte> payload) {
    const std::int64_t needed = kIndexPages + LmdbValuePages(kEnvelopeBytes + payload.size(),
                                                             kIdBytes, environment.page_bytes());
    while (needed > MaxPages(environment) && environment.Grow(budget_bytes_)) {
    }
    if (needed > MaxPages(environment) || payload.size() > kMaxValueBytes) {
      return MDB_BAD_VALSIZE;
    }
    const Envelope envelope = MakeEnvelope(id, payload);
    const std::vector<ObjectId> touched = TakeTouched();
    Waits waits{.may_grow = environment.map_bytes() < budget_bytes_, .left = max_wait_};
    int error = 0;
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      const std::int64_t max = MaxPages(environment) - needed;
      error = WriteEvicting(environment, [&](Changes& changes, std::int64_t& evicted) {
        std::int64_t live = 0;
        if (const int counted = changes.LivePages(live); counted != 0) return counted;
        if (live > max && waits.may_grow) return MDB_MAP_FULL;
        if (const int used = changes.UseAll(touched); used != 0) return used;
        if (const int made = EnsureCapacity(environment, changes, max, evicted); made != 0)
          return made;
        return changes.Write(id, envelope, payload);
      });
      if (error != MDB_MAP_FULL) break;
      const int freed = FreePages(environment, needed, attempt, waits);
      if (freed != 0 && freed != MDB_MAP_FULL) return freed;
    }
    return error;
  }

  // What an object may still wait for.
  struct Waits {
    bool may_grow = false;
    std::chrono::milliseconds left;  // for readers
  };

  // Frees pages for an object that found none: the file grows, or pages that somebody read become free. Else no run
  // of free pages is long enough, or those that were freed are not free yet: more objects go, in a transaction of
  // their own.
  int FreePages(LmdbEnvironment& environment, std::int64_t needed, int attempt, Waits& waits) {
    waits.may_grow = waits.may_grow && environment.Grow(budget_bytes_);
    if (waits.may_grow) return 0;
    int dead = 0;
    if (const int error = environment.ClearDeadReaders(dead); error != 0) return error;
    if (dead > 0) return 0;
    bool has_waited = false;
    if (const int error = environment.WaitForReaders(waits.left, has_waited); error != 0)
      return error;
    if (has_waited && attempt == 0) return 0;
    return WriteEvicting(environment, [&](Changes& changes, std::int64_t& evicted) {
      std::int64_t live = 0;
      if (const int error = changes.LivePages(live); error != 0) return error;
      return EnsureCapacity(environment, changes, std::max<std::int64_t>(0, live - needed),
                            evicted);
    });
  }

  Status Fail(LmdbEnvironment& environment, int error, std::size_t payload_bytes) const {
    const bool is_full = error == MDB_BAD_VALSIZE || error == MDB_MAP_FULL;
    if (is_full && environment.map_bytes() < budget_bytes_) {
      return {
          StatusCode::kCacheFull,
          StrCat("an object of ", payload_bytes, " bytes does not fit into the ",
                 environment.map_bytes(), " bytes of the store's file that this process may map")};
    }
    if (is_full) {
      return CacheFull(StrCat("an object of ", payload_bytes,
                              " bytes does not fit into the store's budget of ", budget_bytes_));
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
    if (file_.Current() == nullptr) return;
    const auto environment = file_.Environment();
    if (!environment.ok() || !(*environment)->IsInPlace()) return;
    (void)(*environment)->Write([&](MDB_txn* transaction) {
      return Changes(**environment, transaction).UseAll(touched);
    });
  }

  std::mutex hook_mutex_;  // held while the hook is called
  EvictionHook evicts_;
  std::mutex mutex_;
  std::vector<ObjectId> touched_;  // that no transaction has written yet
  const std::chrono::milliseconds max_wait_;
  const std::int64_t budget_bytes_;
  StoreFile file_;
  std::atomic<std::int64_t> evicted_ = 0;
  std::atomic<std::int64_t> damaged_ = 0;
  std::atomic<std::int64_t> discarded_ = 0;  // files
};

Status CheckOptions(const DiskStoreOptions& options) {
  if (options.budget_bytes < kMinDiskStoreBytes) {
    return InvalidArgument(StrCat("the disk store's budget is ", options.budget_bytes,
                                  " bytes; must be at least ", kMinDiskStoreBytes));
  }
  if (options.max_wait_ms >= 0) return Status::Ok();
  return InvalidArgument(
      StrCat("the disk store's longest wait is ", options.max_wait_ms, " ms; must be at least 0"));
}

Result<std::unique_ptr<DiskStore>> Make(const DiskStoreOptions& options, SteadyClock clock) {
  KVCACHE_RETURN_IF_ERROR(CheckOptions(options));
  return std::make_unique<DiskStore>(options, std::move(clock));
}

Result<std::unique_ptr<DiskStore>> Open(const DiskStoreOptions& options, SteadyClock clock) {
  KVCACHE_ASSIGN_OR_RETURN(auto store, Make(options, std::move(clock)));
  KVCACHE_RETURN_IF_ERROR(store->Open());
  return store;
}

// An earlier budget was larger. If the file cannot shrink now, it does at another time.
void ShrinkIfNeeded(DiskStore& store) {
  if (store.IsBeyondBudget()) (void)store.Shrink().ok();
}

}  // namespace

Result<std::unique_ptr<Store>> OpenDiskStoreWith(const DiskStoreOptions& options,
                                                 SteadyClock clock) {
  KVCACHE_ASSIGN_OR_RETURN(auto store, Open(options, std::move(clock)));
  ShrinkIfNeeded(*store);
  return std::unique_ptr<Store>(std::move(store));
}

Result<LateDiskStore> OpenDiskStoreLaterWith(const DiskStoreOptions& options, SteadyClock clock) {
  KVCACHE_ASSIGN_OR_RETURN(auto store, Make(options, std::move(clock)));
  Status problem = store->Open();
  if (problem.code() == StatusCode::kInvalidArgument) return problem;
  if (problem.ok()) ShrinkIfNeeded(*store);
  return LateDiskStore{.store = std::move(store), .problem = std::move(problem)};
}

}  // namespace kvcache::store

namespace kvcache {

Result<std::unique_ptr<Store>> OpenDiskStore(const DiskStoreOptions& options) {
  return store::OpenDiskStoreWith(options, &std::chrono::steady_clock::now);
}

Result<LateDiskStore> OpenDiskStoreLater(const DiskStoreOptions& options) {
  return store::OpenDiskStoreLaterWith(options, &std::chrono::steady_clock::now);
}

Result<StoreStats> CollectGarbage(const DiskStoreOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(auto opened, store::Open(options, &std::chrono::steady_clock::now));
  KVCACHE_RETURN_IF_ERROR(opened->CollectGarbage());
  return opened->Stats();
}

}  // namespace kvcache
