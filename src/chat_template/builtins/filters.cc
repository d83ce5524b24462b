#include "chat_template/builtins/filters.h"

#include "base/parse_number.h"
#include "base/strings.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

constexpr int kMaxFilterDepth = 50;  // map(map(…)): filters that apply filters

const Filter* FindFilter(std::string_view name) {
  for (const auto filters :
       {TextFilters(), NumberFilters(), ListFilters(), GroupFilters(), PickFilters()}) {
    for (const Filter& filter : filters) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

// Converts a part of a path: "12" to an index, other parts to a name.
Value PathPart(std::string_view part) {
  const auto index = ParseNumber<std::int64_t>(part);
  return index && part[0] != '-' ? Value(*index) : Value::Literal(part);
}

}  // namespace

Result<Value> AttributeOf(const Value& item, const Value* attribute, Environment& env) {
  if (attribute == nullptr || attribute->IsNone()) return item;
  if (attribute->IsInteger()) return GetItem(item, *attribute, env);
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText path, TextOr(attribute, "", "attribute"));
  Value value = item;
  std::string_view rest = path.bytes();
  for (;;) {
    const std::size_t dot = rest.find('.');
    KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
    KVCACHE_ASSIGN_OR_RETURN(value, GetItem(value, PathPart(rest.substr(0, dot)), env));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

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

Result<Value> OneByOne(std::vector<Value> items, Budget& budget) {
  KVCACHE_ASSIGN_OR_RETURN(const Value list, MakeList(std::move(items), budget));
  return Value(GeneratorOf(list.shared_list()));
}

Result<Value> ApplyFilter(std::string_view name, const Value& input, const Arguments& arguments,
                          Environment& env) {
  KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
  const Filter* filter = FindFilter(name);
  if (filter == nullptr) return NotSupported("filter", name);
  if (env.depth >= kMaxFilterDepth) {
    return InvalidArgument(StrCat("filters are nested deeper than ", kMaxFilterDepth, " levels"));
  }
  ++env.depth;
  auto result = filter->run({input, arguments, env});
  --env.depth;
  return result;
}

}  // namespace kvcache::jinja
