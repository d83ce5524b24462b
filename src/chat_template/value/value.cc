#include "chat_template/value/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/value/callable.h"
#include "chat_template/value/python_text.h"

// GCC 12 sees uninitialized members in a std::variant that is moved.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace kvcache::jinja {
namespace {

Status ValueTooDeep() {
  return Unsupported(StrCat("lists and dicts are nested deeper than ", kMaxNesting, " levels"));
}

}  // namespace

Value::Value(Undefined undefined) : data_(std::move(undefined)) {}
Value::Value(std::int64_t number) : data_(number) {}
Value::Value(double number) : data_(number) {}
Value::Value(MarkedText text) : data_(std::make_shared<const MarkedText>(std::move(text))) {}
Value::Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
Value::Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
Value::Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
Value::Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
Value::Value(std::shared_ptr<const Loop> loop) : data_(std::move(loop)) {}
Value::Value(Data data) : data_(std::move(data)) {}
Value::Value(const Value& other) = default;
Value::Value(Value&& other) noexcept = default;
Value& Value::operator=(const Value& other) = default;
Value& Value::operator=(Value&& other) noexcept = default;
Value::~Value() = default;

Value Value::None() {
  return Value(Data(std::monostate()));
}
Value Value::Bool(bool value) {
  return Value(Data(value));
}

std::int64_t Value::integer() const {
  return is(Kind::kBool) ? static_cast<std::int64_t>(boolean()) : std::get<std::int64_t>(data_);
}

double Value::number() const {
  return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(integer());
}

const std::vector<Value>& Value::items() const {
  return list().items;
}

std::string Value::why() const {
  const auto& why = std::get<Undefined>(data_).why;
  return why ? *why : "the value is undefined";
}

bool Value::IsTruthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return boolean();
    case Kind::kInt: return integer() != 0;
    case Kind::kFloat: return number() != 0.0;
    case Kind::kText: return !text().empty();
    case Kind::kList: return !items().empty();
    case Kind::kDict: return dict().size() != 0;
    case Kind::kNamespace:
    case Kind::kCallable:
    case Kind::kLoop: return true;
  }
  return false;
}

int Value::Nesting() const {
  switch (kind()) {
    case Kind::kList: return list().nesting;
    case Kind::kDict: return dict().nesting();
    case Kind::kCallable: return callable().nesting;
    case Kind::kLoop: return loop().nesting;
    default: return 0;
  }
}

std::string_view Value::KindName() const {
  switch (kind()) {
    case Kind::kUndefined: return "an undefined value";
    case Kind::kNone: return "none";
    case Kind::kBool: return "a boolean";
    case Kind::kInt: return "an integer";
    case Kind::kFloat: return "a float";
    case Kind::kText: return "a string";
    case Kind::kList: return list().kind == ListKind::kList ? "a list" : "a tuple";
    case Kind::kDict: return "a dict";
    case Kind::kNamespace: return "a namespace";
    case Kind::kCallable: return "a function";
    case Kind::kLoop: return "a loop";
  }
  return "a value";
}

const Value* Dict::FindKey(const std::string& hashed) const {
  const auto found = index_.find(hashed);
  return found == index_.end() ? nullptr : &items_[found->second].second;
}

const Value* Dict::Find(std::string_view key) const {
  return FindKey(StrCat('s', key));
}

void Dict::Set(Value key, const std::string& hashed, Value value) {
  nesting_ = std::max(nesting_, 1 + std::max(key.Nesting(), value.Nesting()));
  const auto [place, is_new] = index_.emplace(hashed, items_.size());
  if (is_new) {
    items_.emplace_back(std::move(key), std::move(value));
  } else {
    items_[place->second].second = std::move(value);
  }
}

Value* Namespace::Find(std::string_view name) {
  for (auto& [known, value] : attributes) {
    if (known == name) return &value;
  }
  return nullptr;
}

Result<Value> MakeList(std::vector<Value> items, Budget& budget, ListKind kind) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend((1 + items.size()) * Budget::kItem));
  int nesting = 1;
  for (const Value& item : items) nesting = std::max(nesting, 1 + item.Nesting());
  if (nesting > kMaxNesting) return ValueTooDeep();
  return Value(std::make_shared<const List>(List{std::move(items), kind, nesting}));
}

Status AddItem(Dict& dict, Value key, Value value, Budget& budget) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string hashed, HashKey(key, budget));
  KVCACHE_RETURN_IF_ERROR(budget.Spend(3 * Budget::kItem + hashed.size()));
  if (std::max(key.Nesting(), value.Nesting()) >= kMaxNesting) return ValueTooDeep();
  dict.Set(std::move(key), hashed, std::move(value));
  return Status::Ok();
}

Value MakeDict(Dict dict) {
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Result<Value> MakeText(MarkedText text, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kItem + text.Footprint()));
  return Value(std::move(text));
}

Result<std::string> HashKey(const Value& key, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  switch (key.kind()) {
    case Value::Kind::kNone: return std::string("n");
    case Value::Kind::kText:
      KVCACHE_RETURN_IF_ERROR(budget.Spend(key.bytes().size()));
      return StrCat('s', key.bytes());
    case Value::Kind::kBool:
    case Value::Kind::kInt: return StrCat('i', key.integer());
    case Value::Kind::kFloat: {
      const double number = key.number();
      const bool whole = std::abs(number) < 9e15 && number == std::floor(number);
      return whole ? StrCat('i', static_cast<std::int64_t>(number)) : StrCat('f', number);
    }
    case Value::Kind::kList: {
      if (key.list().kind == ListKind::kList) break;
      std::string hashed = "t";
      for (const Value& item : key.items()) {
        KVCACHE_ASSIGN_OR_RETURN(const std::string part, HashKey(item, budget));
        KVCACHE_RETURN_IF_ERROR(budget.Spend(part.size()));
        hashed += StrCat(part.size(), ':', part);
      }
      return hashed;
    }
    default: break;
  }
  return InvalidArgument(StrCat(key.KindName(), " cannot be a dict key"));
}

Result<std::vector<Value>> Iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Value::Kind::kUndefined: return items;
    case Value::Kind::kList:
      KVCACHE_RETURN_IF_ERROR(budget.Spend(value.items().size() * Budget::kStep));
      return value.items();
    case Value::Kind::kDict:
      KVCACHE_RETURN_IF_ERROR(budget.Spend(value.dict().size() * Budget::kStep));
      for (const Dict::Item& item : value.dict().items()) items.push_back(item.first);
      return items;
    case Value::Kind::kText:
      KVCACHE_RETURN_IF_ERROR(budget.Spend(value.bytes().size() * 2 * Budget::kItem));
      for (std::size_t at = 0; at < value.bytes().size();) {
        const std::size_t next = at + CharacterBytes(value.bytes(), at);
        items.emplace_back(value.text().Substring(at, next));
        at = next;
      }
      return items;
    default: break;
  }
  return InvalidArgument(StrCat(value.KindName(), " is not iterable"));
}

}  // namespace kvcache::jinja
