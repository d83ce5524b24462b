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
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.input, call.env));
  return MakeList(std::move(items), call.budget());
}

Result<Value> First(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto items, ItemsOf(call.input, call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(std::optional<Value> item, items->Next(call.env));
  if (!item) return Value::Missing("'first' is undefined for an empty sequence");
  return *std::move(item);
}

Result<Value> Last(Call call) {
  if (call.input.is(Value::Kind::kGenerator)) {
    return InvalidArgument("the input of 'last' is a generator; must be a sequence");
  }
  const Value missing = Value::Missing("'last' is undefined for an empty sequence");
  if (call.input.IsList()) {
    return call.input.items().empty() ? missing : call.input.items().back();
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
  return items.empty() ? missing : items.back();
}

Result<Value> Reverse(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.input, call.env));
  std::reverse(items.begin(), items.end());
  if (call.input.IsText()) {
    KVCACHE_ASSIGN_OR_RETURN(MarkedText text, Join(items, MarkedText(), call.budget()));
    return MakeText(std::move(text), call.budget());
  }
  const bool is_list = call.input.is(Value::Kind::kGenerator);  // as in Jinja
  return is_list ? MakeList(std::move(items), call.budget())
                 : OneByOne(std::move(items), call.budget());
}

// Returns the pairs of a dict as tuples.
Result<std::vector<Value>> Pairs(Call call, std::string_view filter) {
  std::vector<Value> pairs;
  if (call.input.IsUndefined() && filter == "items") return pairs;
  if (!call.input.IsDict()) {
    return InvalidArgument(
        StrCat("the input of '", filter, "' is ", call.input.KindName(), "; must be a dict"));
  }
  for (const auto& [key, value] : call.input.dict().items()) {
    KVCACHE_ASSIGN_OR_RETURN(Value pair, MakeList({key, value}, call.budget(), ListKind::kTuple));
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

Result<Value> Items(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> pairs, Pairs(call, "items"));
  return OneByOne(std::move(pairs), call.budget());
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
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
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
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> pairs, Pairs(call, "dictsort"));
  const Value index(std::int64_t{by.bytes() == "key" ? 0 : 1});
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           Keys(pairs, &index, BoolOr(given[0], false), call.env));
  return Sorted(pairs, keys, BoolOr(given[2], false), call.budget());
}

Result<Value> Extreme(Call call, bool largest) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"case_sensitive", "attribute"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
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
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           Keys(items, given[1], BoolOr(given[0], false), call.env));
  Dict seen;
  std::vector<Value> unique;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t before = seen.size();
    KVCACHE_RETURN_IF_ERROR(seen.Set(keys[i], Value::None(), call.budget()));
    if (seen.size() > before) unique.push_back(items[i]);
  }
  return OneByOne(std::move(unique), call.budget());
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
