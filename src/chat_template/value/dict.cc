// Dict: items in order, found by a scan while there are few.
#include "base/strings.h"
#include "chat_template/value/value.h"

namespace kvcache::jinja {
namespace {

constexpr std::size_t kMaxScanned = 8;

Status DictTooDeep() {
  return Status(StatusCode::kUnsupported,
                StrCat("lists and dicts are nested deeper than ", kMaxNesting, " levels"));
}

}  // namespace

std::size_t Dict::PlaceOf(const std::string& hashed) const {
  const auto found = index_.find(hashed);
  return found == index_.end() ? size() : found->second;
}

std::size_t Dict::PlaceOfText(std::string_view key) const {
  if (!index_.empty()) return PlaceOf(StrCat('s', key));
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].first.bytes() == key) return i;
  }
  return size();
}

const Value* Dict::Find(std::string_view key) const {
  const std::size_t place = PlaceOfText(key);
  return place == size() ? nullptr : &items_[place].second;
}

Result<const Value*> Dict::FindKey(const Value& key, Budget& budget) const {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  if (key.IsText()) {
    KVCACHE_RETURN_IF_ERROR(budget.Spend(key.bytes().size() / 16));
    return Find(key.bytes());
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::string hashed, HashKey(key, budget));
  const std::size_t place = only_texts_ ? size() : PlaceOf(hashed);
  return place == size() ? nullptr : &items_[place].second;
}

// Adds all keys to the index.
Status Dict::Index(Budget& budget) {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(std::string hashed, HashKey(items_[i].first, budget));
    index_.emplace(std::move(hashed), i);
  }
  return Status::Ok();
}

Status Dict::Set(Value key, Value value, Budget& budget) {
  const int nesting = 1 + std::max(key.Nesting(), value.Nesting());
  if (nesting > kMaxNesting) return DictTooDeep();
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kItem));
  std::string hashed;
  if (!key.IsText() || !index_.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(hashed, HashKey(key, budget));
    only_texts_ = only_texts_ && key.IsText();
    if (index_.empty()) KVCACHE_RETURN_IF_ERROR(Index(budget));
  }
  const std::size_t place = key.IsText() ? PlaceOfText(key.bytes()) : PlaceOf(hashed);
  nesting_ = std::max(nesting_, nesting);
  if (place != size()) {
    items_[place].second = std::move(value);
    return Status::Ok();
  }
  const bool indexed = !index_.empty() || !only_texts_;
  if (indexed) index_.emplace(hashed, size());
  items_.emplace_back(std::move(key), std::move(value));
  if (!indexed && size() > kMaxScanned) KVCACHE_RETURN_IF_ERROR(Index(budget));
  return charge_.Hold(sizeof(Dict) + size() * (sizeof(Item) + (indexed ? 96 : 0)), budget);
}

}  // namespace kvcache::jinja
