// A store in this process's memory. Objects have their envelopes and are verified on every read, as in
// every other store.
//
// Bytes are counted before they are taken, and until they have been given back: also those of an object that
// had to go while somebody read it.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/store.h"
#include "platform/aligned_buffer.h"
#include "platform/wall_clock.h"
#include "store/object_format.h"

namespace kvcache::store {
namespace {

constexpr std::int64_t kIndexBytes = 256;                 // of the tables, for each object
constexpr std::size_t kPageBytes = 4096;                  // of the system's small pages
constexpr std::size_t kMinPaged = std::size_t{64} << 10;  // smaller objects are in the heap
using Counter = std::shared_ptr<std::atomic<std::int64_t>>;

// Returns the bytes that an object takes.
std::int64_t HeldBy(std::size_t payload_bytes) {
  std::size_t bytes = payload_bytes + kEnvelopeBytes;
  if (bytes >= kMinPaged) bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return static_cast<std::int64_t>(bytes) + kIndexBytes;
}

// An envelope and a payload, which are counted as long as they live.
class Content {
 public:
  explicit Content(Counter held) : held_(std::move(held)) {}
  ~Content() {
    buffer_ = AlignedBuffer();
    *held_ -= counted_;
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  void Count(std::int64_t bytes) {
    *held_ += bytes;
    counted_ += bytes;
  }
  Status Allocate(std::size_t size) {
    KVCACHE_ASSIGN_OR_RETURN(
        buffer_, size >= kMinPaged ? AlignedBuffer::MakePaged(size) : AlignedBuffer::Make(size));
    return Status::Ok();
  }
  std::span<std::byte> bytes() const { return {buffer_.data(), buffer_.size_bytes()}; }
  std::span<std::byte> payload() const { return bytes().subspan(kEnvelopeBytes); }

 private:
  AlignedBuffer buffer_;
  const Counter held_;
  std::int64_t counted_ = 0;
};

class MemoryStoreImpl final : public MemoryStore {
 public:
  explicit MemoryStoreImpl(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  Status Get(const ObjectId& id, const Reader& reader) override {
    std::shared_ptr<const Content> content;
    {
      const std::lock_guard lock(mutex_);
      const auto found = objects_.find(id);
      if (found == objects_.end()) return NotThere();
      content = found->second.content;
      MarkUsed(found->second);
    }
    const auto payload = OpenEnvelope(id, content->bytes());
    if (payload.ok()) return reader(*payload);
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(id);
    if (found != objects_.end() && found->second.content == content) {
      ++damaged_;
      Erase(found);
    }
    return payload.status();
  }

  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    return PutFilled(id, payload.size(), [&](std::span<std::byte> bytes) {
      if (!payload.empty()) std::memcpy(bytes.data(), payload.data(), payload.size());
      return Status::Ok();
    });
  }

  Status PutFilled(const ObjectId& id, std::size_t payload_bytes, const Filler& fill) override {
    const auto problem = [&] {
      return StrCat("no memory for an object of ", payload_bytes, " bytes");
    };
    return kvcache::Guarded(problem, [&]() -> Status {
      KVCACHE_ASSIGN_OR_RETURN(const auto content, MakeContent(id, payload_bytes));
      KVCACHE_RETURN_IF_ERROR(fill(content->payload()));
      const Envelope envelope = MakeEnvelope(id, content->payload());
      std::copy(envelope.begin(), envelope.end(), content->bytes().begin());
      std::list<ObjectId> place(1, id);
      const std::lock_guard lock(mutex_);
      if (*held_ > budget_bytes_) return NoRoom(payload_bytes);  // it became less meanwhile
      if (const auto old = objects_.find(id); old != objects_.end()) Erase(old);
      objects_.emplace(id, Object{content, place.begin(), WallClockSeconds()});
      order_.splice(order_.end(), place);
      return Status::Ok();
    });
  }

  Result<bool> Contains(const ObjectId& id) override {
    const std::lock_guard lock(mutex_);
    return objects_.contains(id);
  }

  void Touch(std::span<const ObjectId> ids) override {
    const std::lock_guard lock(mutex_);
    for (const ObjectId& id : ids) {
      if (const auto found = objects_.find(id); found != objects_.end()) MarkUsed(found->second);
    }
  }

  // The hook may have the object: it is gone everywhere once the hook has ended.
  Status Remove(const ObjectId& id) override {
    std::unique_lock lock(mutex_);
    if (const auto found = objects_.find(id); found != objects_.end()) Erase(found);
    left_.wait(lock, [&] { return leaving_bytes_ == 0; });
    return Status::Ok();
  }

  Result<std::vector<StoredObject>> List() override {
    const std::lock_guard lock(mutex_);
    std::vector<StoredObject> all;
    for (const ObjectId& id : order_) {
      const Object& object = objects_.at(id);
      all.push_back({id, std::ssize(object.content->payload()), object.last_used_s});
    }
    return all;
  }

  Result<StoreStats> Usage() override {
    const std::lock_guard lock(mutex_);
    return StoreStats{.held_bytes = *held_,
                      .budget_bytes = budget_bytes_,
                      .evicted = evicted_,
                      .damaged = damaged_};
  }
  StoreTier tier() const override { return StoreTier::kMemory; }
  void SetEvictionHook(EvictionHook hook) override {
    const std::lock_guard lock(hook_mutex_);
    evicts_ = std::move(hook);
  }

  std::int64_t SetBudget(std::int64_t bytes) override {
    std::unique_lock lock(mutex_);
    budget_bytes_ = std::max<std::int64_t>(0, bytes);
    EnsureCapacity(lock, 0);
    return *held_;
  }
  std::int64_t held_bytes() const override { return *held_; }
  bool HasRoomFor(std::size_t payload_bytes) const override {
    const std::lock_guard lock(mutex_);
    return HasRoomLocked(payload_bytes);
  }

 private:
  struct Object {
    std::shared_ptr<const Content> content;
    std::list<ObjectId>::iterator place;
    std::int64_t last_used_s = 0;
  };
  using Objects = std::map<ObjectId, Object>;

  static Status NotThere() { return NotFound("the store has no such object"); }
  // REQUIRES: mutex_ is held, as for all that follow.
  Status NoRoom(std::size_t payload_bytes) const {
    const bool fits = HasRoomLocked(payload_bytes);
    return CacheFull(StrCat("an object of ", payload_bytes, " bytes ",
                            fits ? "has no room beside those in use; the store's budget is "
                                 : "is larger than the store's budget of ",
                            budget_bytes_));
  }
  // Sizes near the largest number would wrap in HeldBy.
  bool HasRoomLocked(std::size_t payload_bytes) const {
    return payload_bytes <= static_cast<std::size_t>(budget_bytes_) &&
           HeldBy(payload_bytes) <= budget_bytes_;
  }

  // Makes room for an object, counts its bytes, and takes them.
  Result<std::shared_ptr<Content>> MakeContent(const ObjectId& id, std::size_t payload_bytes) {
    auto content = std::make_shared<Content>(held_);
    {
      std::unique_lock lock(mutex_);
      const std::int64_t counted = HeldBy(payload_bytes);
      if (!HasRoomLocked(payload_bytes) || !CanMakeRoom(counted)) return NoRoom(payload_bytes);
      if (const auto old = objects_.find(id); old != objects_.end()) Erase(old);
      EnsureCapacity(lock, counted);
      if (*held_ + counted > budget_bytes_) return NoRoom(payload_bytes);
      content->Count(counted);
    }
    KVCACHE_RETURN_IF_ERROR(content->Allocate(kEnvelopeBytes + payload_bytes));
    return content;
  }

  // Returns whether there is room without the objects that nobody reads. Those that somebody reads keep
  // their bytes.
  bool CanMakeRoom(std::int64_t bytes) const {
    std::int64_t left = budget_bytes_ - *held_ + leaving_bytes_;
    for (auto id = order_.begin(); left < bytes && id != order_.end(); ++id) {
      const auto& content = objects_.at(*id).content;
      if (content.use_count() == 1) left += HeldBy(content->payload().size());
    }
    return left >= bytes;
  }

  // Others may use the store while the hook is called. Waits for objects that others evict.
  void EnsureCapacity(std::unique_lock<std::mutex>& lock, std::int64_t bytes) {
    while (*held_ - leaving_bytes_ + bytes > budget_bytes_ && !order_.empty()) {
      const auto oldest = objects_.find(order_.front());
      const ObjectId id = oldest->first;
      std::shared_ptr<const Content> content = oldest->second.content;
      const std::int64_t leaving = HeldBy(content->payload().size());
      ++evicted_;
      Erase(oldest);
      leaving_bytes_ += leaving;
      lock.unlock();
      TellOfEviction(id, *content);
      content.reset();
      lock.lock();
      leaving_bytes_ -= leaving;
      left_.notify_all();
    }
    left_.wait(lock, [&] { return leaving_bytes_ == 0 || *held_ + bytes <= budget_bytes_; });
  }

  // REQUIRES: mutex_ is not held.
  void TellOfEviction(const ObjectId& id, const Content& content) {
    const std::lock_guard lock(hook_mutex_);
    if (!evicts_) return;
    const auto payload = OpenEnvelope(id, content.bytes());
    if (payload.ok()) evicts_(id, *payload);
  }

  void MarkUsed(Object& object) {
    order_.splice(order_.end(), order_, object.place);
    object.last_used_s = WallClockSeconds();
  }

  void Erase(Objects::iterator at) {
    order_.erase(at->second.place);
    objects_.erase(at);
  }

  mutable std::mutex mutex_;
  std::int64_t budget_bytes_;
  Objects objects_;
  std::list<ObjectId> order_;  // the least recently used first
  const Counter held_ = std::make_shared<std::atomic<std::int64_t>>(0);
  std::int64_t evicted_ = 0;
  std::int64_t damaged_ = 0;
  // Of objects that are not in the tables any more, while the hook is called.
  std::int64_t leaving_bytes_ = 0;
  std::condition_variable left_;  // leaving_bytes_ became less
  std::mutex hook_mutex_;         // held while the hook is called
  EvictionHook evicts_;
};

}  // namespace

}  // namespace kvcache::store

namespace kvcache {

Result<std::unique_ptr<MemoryStore>> MakeMemoryStore(std::int64_t budget_bytes) {
  if (budget_bytes < 1) {
    return InvalidArgument(
        StrCat("the store's budget is ", budget_bytes, " bytes; must be at least 1"));
  }
  return std::unique_ptr<MemoryStore>(std::make_unique<store::MemoryStoreImpl>(budget_bytes));
}

}  // namespace kvcache
