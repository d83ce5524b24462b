// The call of a filter, and the tables of filters by the kind of their input.
//
// Thread safety: free functions.
#pragma once

#include <span>
#include <string_view>

#include "chat_template/builtins.h"

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

// Returns the value at `attribute` of the item: a path ("a.b.0"), a number, or null for the item.
Result<Value> AttributeOf(const Value& item, const Value* attribute, Environment& env);

}  // namespace kvcache::jinja
