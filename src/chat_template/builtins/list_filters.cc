// Filters that return lists, or an item of a list.
#include <algorithm>
#include <numeric>

#include "base/strings.h"
#include "chat_template/builtins/filters.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

Result<Value> AsList(Call call) {
  KVCACHE_RETURN_IF_ERROR(Bind(call.arguments, {}).status());
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.input, call.budget()));
  return MakeList(std::move(items), call.budget());
}

Result<Value> First(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  return items.empty() ? Value::Missing("'first' is undefined for an empty sequence")
                       : items.front();
}

Result<Value> Last(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  return items.empty() ? Value::Missing("'last' is undefined for an empty sequence") : items.back();
}

Result<Value> Reverse(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.input, call.budget()));
  std::reverse(items.begin(), items.end());
  if (!call.input.IsText()) return MakeList(std::move(items), call.budget());
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text, Join(items, MarkedText(), call.budget()));
  return MakeText(std::move(text), call.budget());
}

Result<Value> Items(Call call) {
  if (call.input.IsUndefined()) return MakeList({}, call.budget());
  if (!call.input.IsDict()) {
    return InvalidArgument(
        StrCat("the input of 'items' is ", call.input.KindName(), "; must be a dict"));
  }
  std::vector<Value> pairs;
  for (const auto& [key, value] : call.input.dict().items()) {
    KVCACHE_ASSIGN_OR_RETURN(Value pair, MakeList({key, value}, call.budget(), ListKind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return MakeList(std::move(pairs), call.budget());
}

// Returns the sort keys of the items: an attribute of each, in lower case unless `case_sensitive`.
Result<std::vector<Value>> Keys(const std::vector<Value>& items, const Value* attribute,
                                bool case_sensitive, Environment& env) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(Value key, AttributeOf(item, attribute, env));
    if (key.IsText() && !case_sensitive) {
      KVCACHE_RETURN_IF_ERROR(env.budget.Spend(4 * key.text().size()));
      key = Value(MapCase(key.text(), Case::kLower));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

std::vector<Value> InOrder(const std::vector<Value>& items, const std::vector<std::size_t>& order) {
  std::vector<Value> ordered;
  ordered.reserve(order.size());
  for (const std::size_t at : order) ordered.push_back(items[at]);
  return ordered;
}

Result<Value> Sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse,
                     Budget& budget) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  KVCACHE_RETURN_IF_ERROR(SortBy(keys, reverse, order, budget));
  return MakeList(InOrder(items, order), budget);
}

// Returns the sort keys. "a,b" sorts by a, then by b; then the keys are lists.
Result<std::vector<Value>> SortKeys(const std::vector<Value>& items, const Value* attribute,
                                    bool case_sensitive, Environment& env) {
  if (attribute == nullptr || !attribute->IsText()) {
    return Keys(items, attribute, case_sensitive, env);
  }
  std::vector<std::vector<Value>> rows(items.size());
  for (const TextRange& part : SplitAt(attribute->bytes(), ",", -1, From::kLeft)) {
    const Value one(attribute->text().Substring(part.begin, part.end));
    KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> column, Keys(items, &one, case_sensitive, env));
    for (std::size_t i = 0; i < items.size(); ++i) rows[i].push_back(std::move(column[i]));
  }
  std::vector<Value> keys;
  for (std::vector<Value>& row : rows) {
    KVCACHE_ASSIGN_OR_RETURN(Value key, MakeList(std::move(row), env.budget));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<Value> Sort(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given,
                           Bind(call.arguments, {"reverse", "case_sensitive", "attribute"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           SortKeys(items, given[2], BoolOr(given[1], false), call.env));
  return Sorted(items, keys, BoolOr(given[0], false), call.budget());
}

Result<Value> SortDict(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given,
                           Bind(call.arguments, {"case_sensitive", "by", "reverse"}));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText by, TextOr(given[1], "key", "by"));
  if (by.bytes() != "key" && by.bytes() != "value") {
    return InvalidArgument(
        StrCat("argument 'by' is ", Quoted(by.bytes()), "; must be 'key' or 'value'"));
  }
  if (!call.input.IsDict()) {
    return InvalidArgument(
        StrCat("the input of 'dictsort' is ", call.input.KindName(), "; must be a dict"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const Value pairs, Items(call));
  const Value index(std::int64_t{by.bytes() == "key" ? 0 : 1});
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           Keys(pairs.items(), &index, BoolOr(given[0], false), call.env));
  return Sorted(pairs.items(), keys, BoolOr(given[2], false), call.budget());
}

Result<Value> Extreme(Call call, bool largest) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"case_sensitive", "attribute"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  if (items.empty()) return Value::Missing("'min' and 'max' are undefined for an empty sequence");
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           Keys(items, given[1], BoolOr(given[0], false), call.env));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const bool better, largest ? Less(keys[best], keys[i], call.budget())
                                                        : Less(keys[i], keys[best], call.budget()));
    if (better) best = i;
  }
  return items[best];
}

Result<Value> Unique(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"case_sensitive", "attribute"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           Keys(items, given[1], BoolOr(given[0], false), call.env));
  Dict seen;
  std::vector<Value> unique;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t before = seen.size();
    KVCACHE_RETURN_IF_ERROR(AddItem(seen, keys[i], Value::None(), call.budget()));
    if (seen.size() > before) unique.push_back(items[i]);
  }
  return MakeList(std::move(unique), call.budget());
}

constexpr Filter kFilters[] = {
    {"list", AsList},
    {"first", First},
    {"last", Last},
    {"reverse", Reverse},
    {"items", Items},
    {"sort", Sort},
    {"dictsort", SortDict},
    {"min", [](Call call) { return Extreme(call, false); }},
    {"max", [](Call call) { return Extreme(call, true); }},
    {"unique", Unique},
};

}  // namespace

std::span<const Filter> ListFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
