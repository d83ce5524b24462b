#include "grammar/schema/negation.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/schema/keywords.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxNegationDepth = 20;

std::optional<Json> Opposite(const Json& schema, int depth);

// Adds the opposite of each schema of a list. Returns false if one has none.
bool AddEach(const Json& schemas, int depth, Json& list) {
  return std::all_of(schemas.begin(), schemas.end(), [&](const Json& one) {
    auto opposite = Opposite(one, depth + 1);
    if (!opposite) return false;
    list.push_back(*std::move(opposite));
    return true;
  });
}

// Integers are numbers, so no type alone is left for other numbers.
Json OtherTypes(const Json& type) {
  const Json given = type.is_array() ? type : Json::array({type});
  const auto has = [&](const char* name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  const bool fractions = has("integer") && !has("number");
  Json types = Json::array();
  for (const char* name : {"null", "boolean", "number", "string", "object", "array"}) {
    if (!has(name) && !(fractions && name == std::string_view("number"))) types.push_back(name);
  }
  Json others = types.empty() ? Json(false) : Json{{"type", std::move(types)}};
  if (!fractions) return others;
  const Json numbers = {{"type", "number"}, {"not", Json{{"type", "integer"}}}};
  return {{"anyOf", Json::array({others, numbers})}};
}

Json Typed(const char* type, const char* keyword, Json value) {
  return {{"type", type}, {keyword, std::move(value)}};
}

// A count below a lowest one, or above a highest one.
Json OtherCount(const char* type, const char* opposite, const Json& count, int step) {
  const double limit = count.get<double>() + step;
  if (limit < 0) return false;
  return Typed(type, opposite, static_cast<std::int64_t>(limit));
}

// Returns the opposite of a keyword that holds for each of some properties.
std::optional<Json> OtherProperties(const Json& properties, int depth) {
  Json list = Json::array();
  for (const auto& [name, schema] : properties.items()) {
    auto opposite = Opposite(schema, depth + 1);
    if (!opposite) return {};
    list.push_back({{"type", "object"},
                    {"required", Json::array({name})},
                    {"properties", Json{{name, *std::move(opposite)}}}});
  }
  return list.empty() ? Json(false) : Json{{"anyOf", std::move(list)}};
}

Json WithoutOne(const Json& names) {
  Json list = Json::array();
  for (const Json& name : names) {
    list.push_back({{"type", "object"}, {"properties", Json{{name.get<std::string>(), false}}}});
  }
  return list.empty() ? Json(false) : Json{{"anyOf", std::move(list)}};
}

struct Pair {
  std::string_view keyword;
  const char* type;
  const char* opposite;
  int step;  // for counts
};
constexpr Pair kPairs[] = {
    {"minimum", "number", "exclusiveMaximum", 0},
    {"maximum", "number", "exclusiveMinimum", 0},
    {"exclusiveMinimum", "number", "maximum", 0},
    {"exclusiveMaximum", "number", "minimum", 0},
    {"minLength", "string", "maxLength", -1},
    {"maxLength", "string", "minLength", 1},
    {"minItems", "array", "maxItems", -1},
    {"maxItems", "array", "minItems", 1},
    {"minProperties", "object", "maxProperties", -1},
    {"maxProperties", "object", "minProperties", 1},
};

// Returns the values that one keyword refuses.
std::optional<Json> OppositeOfKeyword(const std::string& keyword, const Json& value, int depth) {
  for (const Pair& pair : kPairs) {
    if (pair.keyword != keyword) continue;
    if (pair.step == 0) return Typed(pair.type, pair.opposite, value);
    return OtherCount(pair.type, pair.opposite, value, pair.step);
  }
  if (keyword == "type") return OtherTypes(value);
  if (keyword == "enum") return Json{{"not", Json{{"enum", value}}}};
  if (keyword == "const") return Json{{"not", Json{{"enum", Json::array({value})}}}};
  if (keyword == "pattern" || keyword == "format") {
    return Json{{"type", "string"}, {"not", Json{{keyword, value}}}};
  }
  if (keyword == "required") return WithoutOne(value);
  if (keyword == "properties") return OtherProperties(value, depth);
  if (keyword == "not") return value;
  Json list = Json::array();
  if (keyword == "allOf") {
    if (!AddEach(value, depth, list)) return {};
    return Json{{"anyOf", std::move(list)}};
  }
  if (keyword == "anyOf") {
    if (!AddEach(value, depth, list)) return {};
    return Json{{"allOf", std::move(list)}};
  }
  return {};
}

std::optional<Json> Opposite(const Json& schema, int depth) {
  if (depth > kMaxNegationDepth) return {};
  if (schema.is_boolean()) return Json(!schema.get<bool>());
  if (!schema.is_object()) return {};
  Json list = Json::array();
  for (const auto& [keyword, value] : schema.items()) {
    const SchemaKeyword* const known = FindKeyword(keyword);
    if (known == nullptr || known->merge == SchemaMerge::kIgnored) continue;
    if (!HasForm(value, known->form)) return {};
    if (keyword == "nullable") continue;
    auto opposite = OppositeOfKeyword(keyword, value, depth);
    if (!opposite) return {};
    list.push_back(*std::move(opposite));
  }
  if (list.empty()) return Json(false);
  Json others = list.size() == 1 ? list[0] : Json{{"anyOf", std::move(list)}};
  if (schema.value("nullable", Json(false)) == false) return others;
  return Json{{"allOf", Json::array({OtherTypes("null"), std::move(others)})}};
}

}  // namespace

std::optional<Json> OppositeOf(const Json& schema) {
  return Opposite(schema, 0);
}

}  // namespace kvcache
