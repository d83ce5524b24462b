#include "chat_template/value/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/value/callable.h"
#include "chat_template/value/generator.h"
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

std::string_view KindNameOf(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kUndefined: return "an undefined value";
    case Value::Kind::kNone: return "none";
    case Value::Kind::kBool: return "a boolean";
    case Value::Kind::kInt: return "an integer";
    case Value::Kind::kFloat: return "a float";
    case Value::Kind::kText: return "a string";
    case Value::Kind::kList: return "a list";
    case Value::Kind::kDict: return "a dict";
    case Value::Kind::kNamespace: return "a namespace";
    case Value::Kind::kCallable: return "a function";
    case Value::Kind::kLoop: return "a loop";
    case Value::Kind::kGenerator: return "a generator";
  }
  return "a value";
}

}  // namespace

Value::Value(Undefined undefined) : data_(std::move(undefined)) {}
Value::Value(std::int64_t number) : data_(number) {}
Value::Value(double number) : data_(number) {}
Value::Value(MarkedText text) : data_(std::move(text)) {}
Value::Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
Value::Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
Value::Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
Value::Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
Value::Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
Value::Value(std::shared_ptr<Generator> generator) : data_(std::move(generator)) {}
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
  const Undefined& undefined = std::get<Undefined>(data_);
  if (undefined.of != Kind::kUndefined) {
    return StrCat(KindNameOf(undefined.of), " has no attribute ", Quoted(undefined.text.bytes()));
  }
  return undefined.text.empty() ? "the value is undefined" : std::string(undefined.text.bytes());
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
    case Kind::kLoop:
    case Kind::kGenerator: return true;
  }
  return false;
}

int Value::Nesting() const {
  switch (kind()) {
    case Kind::kList: return list().nesting;
    case Kind::kDict: return dict().nesting();
    case Kind::kCallable: return callable().nesting;
    case Kind::kLoop: return loop().nesting();
    case Kind::kGenerator: return generator().nesting();
    default: return 0;
  }
}

std::string_view Value::KindName() const {
  if (IsList() && list().kind == ListKind::kTuple) return "a tuple";
  return KindNameOf(kind());
}

Value* Namespace::Find(std::string_view name) {
  for (auto& [known, value] : attributes) {
    if (known == name) return &value;
  }
  return nullptr;
}

Status Namespace::Set(std::string_view name, Value value, Budget& budget) {
  if (Value* known = Find(name)) {
    *known = std::move(value);
    return Status::Ok();
  }
  attributes.emplace_back(name, std::move(value));
  return charge.Hold((2 + attributes.size()) * sizeof(attributes[0]), budget);
}

Result<Value> MakeList(std::vector<Value> items, Budget& budget, ListKind kind) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend((1 + items.size()) * Budget::kItem / 4));
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->nesting = std::max(list->nesting, 1 + item.Nesting());
  if (list->nesting > kMaxNesting) return ValueTooDeep();
  list->items = std::move(items);
  list->kind = kind;
  KVCACHE_RETURN_IF_ERROR(
      list->charge.Hold(sizeof(List) + list->items.size() * sizeof(Value), budget));
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Value MakeDict(Dict dict) {
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Result<Value> MakeText(MarkedText text, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kItem + text.size()));
  KVCACHE_RETURN_IF_ERROR(text.Hold(budget));
  return Value(std::move(text));
}

Result<std::string> HashKey(const Value& key, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  switch (key.kind()) {
    // A key that no dict of a template has.
    case Value::Kind::kUndefined: return std::string("u");
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

}  // namespace kvcache::jinja
