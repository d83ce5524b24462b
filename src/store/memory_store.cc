// A store in this process's memory. Objects have their envelopes and are verified on every read, as in
// every other store.
#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "kvcache/store.h"
#include "platform/wall_clock.h"
#include "store/object_format.h"

namespace kvcache {
namespace {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  Status Get(const ObjectId& id, const Reader& reader) override {
    std::shared_ptr<const Bytes> bytes;
    {
      const std::lock_guard lock(mutex_);
      const auto found = objects_.find(id);
      if (found == objects_.end()) return NotThere();
      bytes = found->second.bytes;
      MarkUsed(found->second);
    }
    const auto payload = OpenEnvelope(id, *bytes);
    if (payload.ok()) return reader(*payload);
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(id);
    if (found != objects_.end() && found->second.bytes == bytes) {
      ++damaged_;
      Erase(found);
    }
    return payload.status();
  }

  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    const std::int64_t size = HeldBy(payload.size());
    if (size > budget_bytes_) {
      return {StatusCode::kCacheFull,
              StrCat("an object of ", size, " bytes is larger than the store's budget of ",
                     budget_bytes_)};
    }
    try {
      const Envelope envelope = MakeEnvelope(id, payload);
      auto bytes = std::make_shared<Bytes>(envelope.size() + payload.size());
      std::copy(payload.begin(), payload.end(),
                std::copy(envelope.begin(), envelope.end(), bytes->begin()));
      const std::lock_guard lock(mutex_);
      if (const auto old = objects_.find(id); old != objects_.end()) Erase(old);
      while (held_bytes_ + size > budget_bytes_) {
        ++evicted_;
        Erase(objects_.find(order_.front()));
      }
      std::list<ObjectId> place(1, id);
      objects_.emplace(id, Object{std::move(bytes), place.begin(), WallClockSeconds()});
      order_.splice(order_.end(), place);
      held_bytes_ += size;
      return Status::Ok();
    } catch (const std::bad_alloc&) {
      return {StatusCode::kOutOfMemory, StrCat("no memory for an object of ", size, " bytes")};
    }
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

  Status Remove(const ObjectId& id) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = objects_.find(id); found != objects_.end()) Erase(found);
    return Status::Ok();
  }

  Result<std::vector<StoredObject>> List() override {
    const std::lock_guard lock(mutex_);
    std::vector<StoredObject> all;
    for (const ObjectId& id : order_) {
      const Object& object = objects_.at(id);
      all.push_back(
          {id, std::ssize(*object.bytes) - std::int64_t{kEnvelopeBytes}, object.last_used_s});
    }
    return all;
  }

  Result<StoreStats> Stats() override {
    const std::lock_guard lock(mutex_);
    StoreStats stats{.objects = std::ssize(order_),
                     .held_bytes = held_bytes_,
                     .budget_bytes = budget_bytes_,
                     .evicted = evicted_,
                     .damaged = damaged_};
    for (const auto& [id, object] : objects_) {
      stats.payload_bytes += std::ssize(*object.bytes) - std::int64_t{kEnvelopeBytes};
    }
    return stats;
  }
  StoreTier tier() const override { return StoreTier::kMemory; }

 private:
  using Bytes = std::vector<std::byte>;
  struct Object {
    std::shared_ptr<const Bytes> bytes;  // an envelope and a payload
    std::list<ObjectId>::iterator place;
    std::int64_t last_used_s = 0;
  };
  using Objects = std::map<ObjectId, Object>;

  static constexpr std::int64_t kIndexBytes = 256;  // of the tables, for each object

  static std::int64_t HeldBy(std::size_t payload) {
    return static_cast<std::int64_t>(payload + kEnvelopeBytes) + kIndexBytes;
  }

  static Status NotThere() { return {StatusCode::kNotFound, "the store has no such object"}; }

  void MarkUsed(Object& object) {
    order_.splice(order_.end(), order_, object.place);
    object.last_used_s = WallClockSeconds();
  }

  void Erase(Objects::iterator at) {
    held_bytes_ -= HeldBy(at->second.bytes->size() - kEnvelopeBytes);
    order_.erase(at->second.place);
    objects_.erase(at);
  }

  const std::int64_t budget_bytes_;
  std::mutex mutex_;
  Objects objects_;
  std::list<ObjectId> order_;  // the least recently used first
  std::int64_t held_bytes_ = 0;
  std::int64_t evicted_ = 0;
  std::int64_t damaged_ = 0;
};

}  // namespace

Result<std::unique_ptr<Store>> MakeMemoryStore(std::int64_t budget_bytes) {
  if (budget_bytes < 1) {
    return InvalidArgument(
        StrCat("the store's budget is ", budget_bytes, " bytes; must be at least 1"));
  }
  return std::unique_ptr<Store>(std::make_unique<MemoryStore>(budget_bytes));
}

}  // namespace kvcache
