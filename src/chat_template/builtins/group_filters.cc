// Filters that return lists of lists: groupby, batch and slice.
#include <algorithm>
#include <numeric>

#include "base/strings.h"
#include "chat_template/builtins/filters.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

// Returns the group of `key` and `items`: a pair with names.
Result<Value> MakeGroup(Value key, std::vector<Value> items, Budget& budget) {
  KVCACHE_ASSIGN_OR_RETURN(Value list, MakeList(std::move(items), budget));
  KVCACHE_ASSIGN_OR_RETURN(const Value pair,
                           MakeList({std::move(key), std::move(list)}, budget, ListKind::kTuple));
  auto group = std::make_shared<List>();
  group->items = pair.items();
  group->kind = ListKind::kTuple;
  group->nesting = pair.Nesting();
  group->is_group = true;
  return Value(std::shared_ptr<const List>(std::move(group)));
}

// Returns the items that share an attribute, in the order of the attribute.
Result<Value> GroupBy(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given,
                           Bind(call.arguments, {"attribute", "default", "case_sensitive"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
  const bool case_sensitive = BoolOr(given[2], false);
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> names, Keys(items, given[0], true, call.env));
  for (Value& name : names) {
    if (name.IsUndefined() && given[1] != nullptr) name = *given[1];
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                           Keys(names, nullptr, case_sensitive, call.env));
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  KVCACHE_RETURN_IF_ERROR(SortBy(keys, false, order, call.budget()));
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < order.size();) {
    std::vector<Value> members;
    std::size_t end = begin;
    for (; end < order.size(); ++end) {
      KVCACHE_ASSIGN_OR_RETURN(const bool same,
                               Equal(keys[order[begin]], keys[order[end]], call.budget()));
      if (!same) break;
      members.push_back(items[order[end]]);
    }
    KVCACHE_ASSIGN_OR_RETURN(Value group,
                             MakeGroup(names[order[begin]], std::move(members), call.budget()));
    groups.push_back(std::move(group));
    begin = std::max(end, begin + 1);
  }
  return MakeList(std::move(groups), call.budget());
}

// Adds a list of `items`, with `fill` up to `size` items unless it is null or none.
Status AddRow(std::vector<Value> items, std::size_t size, const Value* fill,
              std::vector<Value>& rows, Budget& budget) {
  if (fill != nullptr && !fill->IsNone() && items.size() < size) {
    KVCACHE_RETURN_IF_ERROR(budget.Fits(size * sizeof(Value)));
    items.resize(size, *fill);
  }
  KVCACHE_ASSIGN_OR_RETURN(Value row, MakeList(std::move(items), budget));
  rows.push_back(std::move(row));
  return Status::Ok();
}

// Returns lists of `linecount` items each.
Result<Value> Batch(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"linecount", "fill_with"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t count, IntegerOr(given[0], 1, "linecount"));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
  if (count < 1) return NotSupported("linecount of 'batch'", StrCat(count));
  std::vector<Value> rows;
  const auto size = static_cast<std::size_t>(count);
  for (std::size_t begin = 0; begin < items.size();) {
    const std::size_t end = begin + std::min(size, items.size() - begin);
    const auto at = items.begin() + static_cast<std::ptrdiff_t>(begin);
    KVCACHE_RETURN_IF_ERROR(AddRow({at, at + static_cast<std::ptrdiff_t>(end - begin)}, size,
                                   given[1], rows, call.budget()));
    begin = end;
  }
  return OneByOne(std::move(rows), call.budget());
}

// Returns `slices` lists of nearly equal length.
Result<Value> SliceList(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"slices", "fill_with"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t slices, IntegerOr(given[0], 1, "slices"));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
  if (slices < 1) return InvalidArgument("argument 'slices' is below 1");
  const auto count = static_cast<std::size_t>(slices);
  KVCACHE_RETURN_IF_ERROR(call.budget().Fits(count * sizeof(Value)));
  std::vector<Value> rows;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = items.size() / count + (i < items.size() % count ? 1 : 0);
    const auto at = items.begin() + static_cast<std::ptrdiff_t>(begin);
    const bool is_short = i >= items.size() % count;  // gets one item more, as in Jinja
    KVCACHE_RETURN_IF_ERROR(AddRow({at, at + static_cast<std::ptrdiff_t>(size)},
                                   size + (is_short ? 1 : 0), given[1], rows, call.budget()));
    begin += size;
  }
  return OneByOne(std::move(rows), call.budget());
}

constexpr Filter kFilters[] = {
    {"groupby", GroupBy},
    {"batch", Batch},
    {"slice", SliceList},
};

}  // namespace

std::span<const Filter> GroupFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
