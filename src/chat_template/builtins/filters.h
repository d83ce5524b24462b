// The arguments of a filter call, and the tables of filters.
//
// Thread safety: free functions.
#pragma once

#include <span>
#include <string_view>

#include "chat_template/builtins/builtins.h"

namespace kvcache::jinja {

struct FilterCall {
  const Value& input;
  const Arguments& arguments;
  Environment& env;

  Budget& budget() const { return env.budget; }
};

struct Filter {
  std::string_view name;
  Result<Value> (*run)(const FilterCall& call);
};

std::span<const Filter> TextFilters();
std::span<const Filter> NumberFilters();
std::span<const Filter> ListFilters();
std::span<const Filter> GroupFilters();  // groupby, batch, slice
std::span<const Filter> PickFilters();   // map, select, reject and their variants

// Returns an attribute of `item`, named by a path ("a.b.0") or an index; the item itself if
// `attribute` is null or none.
Result<Value> AttributeOf(const Value& item, const Value* attribute, Environment& env);

// Returns the sort keys of the items: an attribute of each, in lower case unless `case_sensitive`.
Result<std::vector<Value>> Keys(const std::vector<Value>& items, const Value* attribute,
                                bool case_sensitive, Environment& env);

// Returns a generator of the items.
Result<Value> OneByOne(std::vector<Value> items, Budget& budget);

}  // namespace kvcache::jinja
