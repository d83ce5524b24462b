// The lists that JSON schemas allow.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "grammar/schema/compiler.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using Schemas = SchemaCompiler::Schemas;

// Returns the schemas of an item that all parts have.
Schemas SchemasAt(const SchemaParts& parts, std::size_t index) {
  Schemas schemas;
  for (const SchemaPart& part : parts) {
    const SchemaItems items = ItemsOf(*part.schema);
    if (items.first != nullptr && index < items.first->size()) {
      schemas.push_back(&(*items.first)[index]);
    } else if (items.rest != nullptr) {
      schemas.push_back(items.rest);
    }
  }
  return schemas;
}

struct Lengths {
  std::int64_t min = 0;
  std::int64_t max = -1;  // any number
};

// Returns the rule of the items. `first`: those of the first places; `item`: all others.
Result<GrammarSymbol> Sequence(const std::vector<GrammarSymbol>& first, GrammarSymbol item,
                               Lengths lengths, const std::string& place,
                               SchemaCompiler& compiler) {
  GrammarBuilder& builder = compiler.builder();
  const GrammarSymbol comma = compiler.json().Comma();
  // From the last place on: what may follow before any item, and after some.
  std::int64_t count = std::max({std::ssize(first), lengths.min, lengths.max});
  GrammarSymbol after_some = builder.AnyOf({{}});
  GrammarSymbol after_none = after_some;
  if (lengths.max < 0) {
    const GrammarSymbol next = builder.AnyOf({{comma, item}});
    after_some = builder.AnyOf({builder.Repeat(next, 0, -1)});
    after_none = builder.AnyOf({{}, {item, after_some}});
  }
  for (std::int64_t i = count; i-- > 0;) {
    if (builder.too_large()) return SchemaError(place, "makes the grammar too large");
    const GrammarSymbol own = i < std::ssize(first) ? first[static_cast<std::size_t>(i)] : item;
    const GrammarSymbol none = builder.NewRule();
    const GrammarSymbol some = builder.NewRule();
    if (lengths.max < 0 || i < lengths.max) {
      builder.Add(none, {own, after_some});
      builder.Add(some, {comma, own, after_some});
    }
    if (i >= lengths.min) {
      builder.Add(none, {});
      builder.Add(some, {});
    }
    after_none = none;
    after_some = some;
  }
  return after_none;
}

}  // namespace

Status AddSchemaArray(GrammarSymbol rule, const SchemaParts& parts, const std::string& place,
                      int depth, SchemaCompiler& compiler) {
  KVCACHE_ASSIGN_OR_RETURN(const auto min, CountOf(parts, "minItems", place));
  KVCACHE_ASSIGN_OR_RETURN(const auto max, CountOf(parts, "maxItems", place));
  const auto unique = EachOf(parts, "uniqueItems");
  const bool is_unique =
      std::any_of(unique.begin(), unique.end(), [](const Json* value) { return *value == true; });
  if (is_unique && !(max && *max <= 1)) return UnsupportedKeyword(place, "uniqueItems");
  std::size_t named = 0;
  for (const SchemaPart& part : parts) {
    const SchemaItems items = ItemsOf(*part.schema);
    if (items.first != nullptr) named = std::max(named, items.first->size());
  }
  std::vector<GrammarSymbol> first;
  for (std::size_t i = 0; i < named; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(
        const GrammarSymbol item,
        compiler.Value(SchemasAt(parts, i), StrCat(place, "/prefixItems/", i), depth));
    first.push_back(item);
  }
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol item,
                           compiler.Value(SchemasAt(parts, named), place + "/items", depth));
  GrammarBuilder& builder = compiler.builder();
  KVCACHE_ASSIGN_OR_RETURN(
      const GrammarSymbol items,
      Sequence(first, item, {min.value_or(0), max.value_or(-1)}, place, compiler));
  builder.Add(rule, Joined(Joined(builder.Literal("["), {items}), builder.Literal("]")));
  return Status::Ok();
}

}  // namespace kvcache
