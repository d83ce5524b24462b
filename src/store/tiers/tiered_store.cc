// Several stores as one.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "base/errors.h"
#include "kvcache/store.h"
#include "store/tiers/tier_moves.h"

namespace kvcache::store {
namespace {

class TieredStore final : public Store {
 public:
  TieredStore(std::vector<std::shared_ptr<Store>> tiers, MoveObjects moves)
      : tiers_(std::move(tiers)), moves_(tiers_, moves) {}

  Status Get(const ObjectId& id, const Reader& reader) override {
    return GetFrom(id,
                   [&](std::span<const std::byte> payload, StoreTier) { return reader(payload); });
  }

  // What the stores before the last one do not have is asked of the last one together.
  Status GetEach(std::span<const ObjectId> ids, const EachReader& reader) override {
    for (std::size_t i = 0; i < ids.size();) {
      const std::size_t end = EndOfLast(ids, i);
      const auto read = [&](std::size_t index, std::span<const std::byte> payload, StoreTier tier) {
        return reader(i + index, payload, tier);
      };
      Status status = end > i
                          ? GetFromLast(ids.subspan(i, end - i), read)
                          : GetFrom(ids[i], [&](std::span<const std::byte> payload,
                                                StoreTier tier) { return read(0, payload, tier); });
      if (!status.ok()) return status;
      i = std::max(end, i + 1);
    }
    return Status::Ok();
  }

  Status GetCopies(const ObjectId& id, const Reader& reader) override {
    Status first = {StatusCode::kNotFound, "no store has such an object"};
    bool has_any = false;
    for (const auto& store : tiers_) {
      Status status = store->Get(id, reader);
      has_any = has_any || status.ok();
      if (first.code() == StatusCode::kNotFound && !status.ok()) first = std::move(status);
    }
    return has_any ? Status::Ok() : first;
  }

  Status Put(const ObjectId& id, std::span<const std::byte> payload) override {
    return ForAll([&](Store& store) { return store.Put(id, payload); });
  }

  Result<bool> Contains(const ObjectId& id) override {
    Status first;
    for (const auto& store : tiers_) {
      auto has = store->Contains(id);
      if (has.ok() && *has) return true;
      if (!has.ok() && first.ok()) first = std::move(has).TakeStatus();
    }
    if (!first.ok()) return first;
    return false;
  }

  void Touch(std::span<const ObjectId> ids) override {
    for (const auto& store : tiers_) store->Touch(ids);
  }

  Status Remove(const ObjectId& id) override {
    moves_.Cancel(id);
    return ForAll([&](Store& store) {
      Status removed = store.Remove(id);
      moves_.Cancel(id);  // it may have been evicted meanwhile
      return removed;
    });
  }

  Result<std::vector<StoredObject>> List() override { return tiers_.front()->List(); }
  Result<StoreStats> Stats() override { return tiers_.front()->Stats(); }
  Result<StoreStats> Usage() override { return tiers_.front()->Usage(); }
  StoreTier tier() const override { return tiers_.front()->tier(); }
  void Flush() override {
    moves_.Flush();
    for (const auto& store : tiers_) store->Flush();
  }

 private:
  template <class Function>
  Status ForAll(const Function& function) {
    Status first;
    for (const auto& store : tiers_) {
      Status status;
      try {
        status = function(*store);
      } catch (const std::exception& error) {
        status = {StatusCode::kInternal, error.what()};
      }
      if (!status.ok() && first.ok()) first = std::move(status);
    }
    return first;
  }

  // Returns the end of the objects from `first` on that only the last store can have.
  std::size_t EndOfLast(std::span<const ObjectId> ids, std::size_t first) {
    const auto has = [&](const ObjectId& id) {
      return std::any_of(tiers_.begin(), tiers_.end() - 1, [&](const auto& store) {
        const auto contains = store->Contains(id);
        return contains.ok() && *contains;
      });
    };
    while (first < ids.size() && !has(ids[first])) ++first;
    return first;
  }

  Status GetFromLast(std::span<const ObjectId> ids, const EachReader& reader) {
    return tiers_.back()->GetEach(
        ids, [&](std::size_t index, std::span<const std::byte> payload, StoreTier tier) {
          Status read = reader(index, payload, tier);
          if (read.ok() && tiers_.size() > 1) moves_.CopyUp(ids[index], payload);
          return read;
        });
  }

  // What is damaged in one store may be whole in the next. The reader's own error ends the search.
  template <class GetReader>
  Status GetFrom(const ObjectId& id, const GetReader& reader) {
    Status first = {StatusCode::kNotFound, "no store has such an object"};
    for (const auto& store : tiers_) {
      bool is_read = false;
      Status status = store->Get(id, [&](std::span<const std::byte> payload) {
        is_read = true;
        Status read = reader(payload, store->tier());
        if (read.ok() && store != tiers_.front()) moves_.CopyUp(id, payload);
        return read;
      });
      if (is_read || status.ok()) return status;
      if (first.code() == StatusCode::kNotFound) first = std::move(status);
    }
    return first;
  }

  const std::vector<std::shared_ptr<Store>> tiers_;
  TierMoves moves_;  // after tiers_
};

}  // namespace

}  // namespace kvcache::store

namespace kvcache {

Result<std::unique_ptr<Store>> MakeTieredStore(std::vector<std::shared_ptr<Store>> tiers,
                                               MoveObjects moves) {
  if (tiers.empty()) return InvalidArgument("there is no store to combine");
  return std::unique_ptr<Store>(std::make_unique<store::TieredStore>(std::move(tiers), moves));
}

}  // namespace kvcache
