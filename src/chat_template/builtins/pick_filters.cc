// map, select, reject, selectattr, rejectattr and attr: filters and tests on each item. They
// return lists instead of Jinja's generators, which templates convert to lists anyway.
#include "base/strings.h"
#include "chat_template/builtins/filters.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

// Returns the arguments without the first `count`.
Arguments Rest(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

// map(attribute="a.b", default=…)
Result<Value> MapAttribute(Call call, const std::vector<Value>& items) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"attribute", "default"}));
  std::vector<Value> mapped;
  for (const Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(Value value, AttributeOf(item, given[0], call.env));
    if (value.IsUndefined() && given[1] != nullptr) value = *given[1];
    mapped.push_back(std::move(value));
  }
  return MakeList(std::move(mapped), call.budget());
}

// Returns whether the result is empty. Jinja tests the input's truth first, so 0 is not an error.
bool IsFalsy(Call call) {
  return !call.input.IsTruthy();
}

Result<Value> Map(Call call) {
  if (IsFalsy(call)) return MakeList({}, call.budget());
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  if (call.arguments.positional.empty()) {
    if (call.arguments.named.empty()) {
      return InvalidArgument("'map' has no arguments; must have a filter or an attribute");
    }
    return MapAttribute(call, items);
  }
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText name,
                           TextOr(call.arguments.positional.data(), "", "name"));
  const Arguments rest = Rest(call.arguments, 1);
  KVCACHE_RETURN_IF_ERROR(call.budget().Spend(rest.positional.size() * Budget::kItem));
  std::vector<Value> mapped;
  for (const Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(Value value, ApplyFilter(name.bytes(), item, rest, call.env));
    mapped.push_back(std::move(value));
  }
  return MakeList(std::move(mapped), call.budget());
}

enum class Keep : std::uint8_t { kPassing, kFailing };
enum class Subject : std::uint8_t { kItem, kAttribute };

// Returns the items whose value passes the test that the arguments name, or, without a test, is
// true.
Result<Value> Pick(Call call, Subject subject, Keep keep) {
  if (IsFalsy(call)) return MakeList({}, call.budget());
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  const std::vector<Value>& given = call.arguments.positional;
  const std::size_t skipped = subject == Subject::kAttribute ? 1 : 0;
  if (given.size() < skipped) return InvalidArgument("the attribute's name is missing");
  const Value* attribute = skipped == 1 ? given.data() : nullptr;
  const bool has_test = given.size() > skipped;
  MarkedText name;
  Arguments rest;
  if (has_test) {
    KVCACHE_ASSIGN_OR_RETURN(name, TextOr(&given[skipped], "", "name"));
    rest = Rest(call.arguments, skipped + 1);
  }
  std::vector<Value> picked;
  for (const Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(const Value value, AttributeOf(item, attribute, call.env));
    bool passes = value.IsTruthy();
    if (has_test) {
      KVCACHE_ASSIGN_OR_RETURN(passes, ApplyTest(name.bytes(), value, rest, call.env));
    }
    if (passes == (keep == Keep::kPassing)) picked.push_back(item);
  }
  return MakeList(std::move(picked), call.budget());
}

Result<Value> Attr(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"name"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText name, TextOr(given[0], "", "name"));
  if (call.input.IsDict() && !HasMethod(call.input, name.bytes())) {
    return Value::Missing(StrCat("a dict has no attribute ", Quoted(name.bytes())));
  }
  return GetAttribute(call.input, name.bytes(), call.env);
}

constexpr Filter kFilters[] = {
    {"map", Map},
    {"select", [](Call call) { return Pick(call, Subject::kItem, Keep::kPassing); }},
    {"reject", [](Call call) { return Pick(call, Subject::kItem, Keep::kFailing); }},
    {"selectattr", [](Call call) { return Pick(call, Subject::kAttribute, Keep::kPassing); }},
    {"rejectattr", [](Call call) { return Pick(call, Subject::kAttribute, Keep::kFailing); }},
    {"attr", Attr},
};

}  // namespace

std::span<const Filter> PickFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
