// Equality, order and membership, as in Python.
#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/value/callable.h"
#include "chat_template/value/environment.h"
#include "chat_template/value/generator.h"
#include "chat_template/value/python_text.h"
#include "chat_template/value/value.h"

namespace kvcache::jinja {
namespace {

Result<bool> EqualLists(const List& a, const List& b, Budget& budget) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const bool equal, Equal(a.items[i], b.items[i], budget));
    if (!equal) return false;
  }
  return true;
}

Result<bool> EqualDicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    KVCACHE_ASSIGN_OR_RETURN(const Value* other, b.FindKey(key, budget));
    if (other == nullptr) return false;
    KVCACHE_ASSIGN_OR_RETURN(const bool equal, Equal(value, *other, budget));
    if (!equal) return false;
  }
  return true;
}

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) return a.integer() == b.integer();
  return a.number() == b.number();
}

Status NoOrder(const Value& a, const Value& b) {
  const Value& undefined = a.IsUndefined() ? a : b;
  if (undefined.IsUndefined()) return InvalidArgument(undefined.why());
  return InvalidArgument(StrCat("cannot order ", a.KindName(), " and ", b.KindName()));
}

Result<bool> LessLists(const List& a, const List& b, Budget& budget) {
  const std::size_t both = std::min(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < both; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const bool equal, Equal(a.items[i], b.items[i], budget));
    if (!equal) return Less(a.items[i], b.items[i], budget);
  }
  return a.items.size() < b.items.size();
}

}  // namespace

Result<bool> Equal(const Value& a, const Value& b, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  if (a.IsNumber() && b.IsNumber()) return EqualNumbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone: return true;
    case Value::Kind::kText:
      KVCACHE_RETURN_IF_ERROR(budget.Spend(std::min(a.text().size(), b.text().size()) / 16));
      return a.bytes() == b.bytes();
    case Value::Kind::kList: return EqualLists(a.list(), b.list(), budget);
    case Value::Kind::kDict: return EqualDicts(a.dict(), b.dict(), budget);
    case Value::Kind::kNamespace: return &a.ns() == &b.ns();
    case Value::Kind::kCallable: return &a.callable() == &b.callable();
    case Value::Kind::kLoop: return &a.loop() == &b.loop();
    case Value::Kind::kGenerator: return &a.generator() == &b.generator();
    default: return false;
  }
}

Result<bool> Less(const Value& a, const Value& b, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  if (a.IsInteger() && b.IsInteger()) return a.integer() < b.integer();
  if (a.IsNumber() && b.IsNumber()) return a.number() < b.number();
  if (a.IsText() && b.IsText()) {
    KVCACHE_RETURN_IF_ERROR(budget.Spend(std::min(a.text().size(), b.text().size()) / 16));
    return a.bytes() < b.bytes();  // UTF-8 sorts as its code points do
  }
  if (a.IsList() && b.IsList() && a.list().kind == b.list().kind) {
    return LessLists(a.list(), b.list(), budget);
  }
  return NoOrder(a, b);
}

Result<bool> Contains(const Value& haystack, const Value& needle, Environment& env) {
  Budget& budget = env.budget;
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  switch (haystack.kind()) {
    case Value::Kind::kUndefined: return false;
    case Value::Kind::kText:
      if (!needle.IsText()) break;
      KVCACHE_RETURN_IF_ERROR(budget.Spend(haystack.text().size() / 16));
      return FindText(haystack.bytes(), needle.bytes(), 0) != std::string::npos;
    case Value::Kind::kDict: {
      KVCACHE_ASSIGN_OR_RETURN(const Value* found, haystack.dict().FindKey(needle, budget));
      return found != nullptr;
    }
    case Value::Kind::kList:
      for (const Value& item : haystack.items()) {
        KVCACHE_ASSIGN_OR_RETURN(const bool equal, Equal(item, needle, budget));
        if (equal) return true;
      }
      return false;
    case Value::Kind::kGenerator:
      for (;;) {
        KVCACHE_ASSIGN_OR_RETURN(const auto item, haystack.generator().Next(env));
        if (!item) return false;
        KVCACHE_ASSIGN_OR_RETURN(const bool equal, Equal(*item, needle, budget));
        if (equal) return true;
      }
    default: break;
  }
  if (needle.IsUndefined()) return InvalidArgument(needle.why());
  return InvalidArgument(
      StrCat("operator 'in' does not apply to ", needle.KindName(), " and ", haystack.KindName()));
}

}  // namespace kvcache::jinja
