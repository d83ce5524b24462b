#include "server/api/responses/store.h"

#include <utility>

#include "server/api/errors.h"

namespace kvcache::server {
namespace {

// An entry's share of the lists and maps, about.
constexpr std::size_t kEntryBytes = 256;

std::string IdOf(const Json& object) {
  const auto found = object.find("id");
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

void ResponseStore::Put(const StoredResponse& stored) {
  Entry entry{.id = IdOf(stored.response),
              .owner = stored.owner,
              .texts = std::make_shared<const Texts>(Texts{.response = Dump(stored.response),
                                                           .items = Dump(stored.items),
                                                           .pieces = Dump(stored.pieces)})};
  entry.bytes = kEntryBytes + entry.texts->response.size() + entry.texts->items.size() +
                entry.texts->pieces.size();
  for (const Json& item : stored.response["output"]) {
    entry.items.push_back(IdOf(item));
    entry.bytes += kEntryBytes;
  }
  const std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(entry.id); old != by_id_.end()) Erase(old->second);
  if (entry.bytes > limits_.bytes || limits_.count == 0) return;
  while (entries_.size() >= limits_.count || bytes_ + entry.bytes > limits_.bytes) {
    Erase(std::prev(entries_.end()));
  }
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  by_id_[entries_.front().id] = entries_.begin();
  for (const std::string& item : entries_.front().items) by_item_[item] = entries_.begin();
}

std::optional<StoredResponse> ResponseStore::Get(const std::string& id, std::uint64_t owner) {
  std::shared_ptr<const Texts> texts;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end() || found->second->owner != owner) return std::nullopt;
    texts = Use(found->second);
  }
  return StoredResponse{.response = Json::parse(texts->response),
                        .items = Json::parse(texts->items),
                        .pieces = Json::parse(texts->pieces),
                        .owner = owner};
}

std::optional<Json> ResponseStore::GetItem(const std::string& id, std::uint64_t owner) {
  std::shared_ptr<const Texts> texts;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_item_.find(id);
    if (found == by_item_.end() || found->second->owner != owner) return std::nullopt;
    texts = Use(found->second);
  }
  const Json response = Json::parse(texts->response);
  for (const Json& item : response["output"]) {
    if (IdOf(item) == id) return item;
  }
  return std::nullopt;
}

bool ResponseStore::Remove(const std::string& id, std::uint64_t owner) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return false;
  Erase(found->second);
  return true;
}

std::size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::shared_ptr<const ResponseStore::Texts> ResponseStore::Use(Entries::iterator entry) {
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->texts;
}

void ResponseStore::Erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  for (const std::string& item : entry->items) by_item_.erase(item);
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace kvcache::server
