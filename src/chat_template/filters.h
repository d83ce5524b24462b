// One filter's call, and the tables of filters, by what they work on.
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
std::span<const Filter> PickFilters();  // map, select and their kin

// The item, or what `attribute` ("a.b.0", a number, or null: the item itself) leads to in it.
Result<Value> AttributeOf(const Value& item, const Value* attribute, Environment& env);

}  // namespace kvcache::jinja
