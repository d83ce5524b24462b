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
std::span<const Filter> PickFilters();  // map, select, reject and their variants

// Returns an attribute of `item`, named by a path ("a.b.0") or an index; the item itself if
// `attribute` is null or none.
Result<Value> AttributeOf(const Value& item, const Value* attribute, Environment& env);

}  // namespace kvcache::jinja
