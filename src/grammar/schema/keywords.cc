#include "grammar/schema/keywords.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using F = SchemaForm;
using T = SchemaType;
using M = SchemaMerge;

constexpr SchemaKeyword kKeywords[] = {
    {"type", F::kTypes, T::kAny, M::kEach},
    {"enum", F::kValues, T::kAny, M::kEach},
    {"const", F::kAnything, T::kAny, M::kEach},
    {"nullable", F::kBool, T::kAny, M::kEach},
    {"$ref", F::kText, T::kAny, M::kEach},
    {"allOf", F::kSchemas, T::kAny, M::kEach},
    {"anyOf", F::kSchemas, T::kAny, M::kEach},
    {"oneOf", F::kSchemas, T::kAny, M::kEach},
    {"not", F::kSchema, T::kAny, M::kEach},
    {"if", F::kSchema, T::kAny, M::kEach},
    {"then", F::kSchema, T::kAny, M::kEach},
    {"else", F::kSchema, T::kAny, M::kEach},
    {"minLength", F::kCount, T::kString, M::kGreatest},
    {"maxLength", F::kCount, T::kString, M::kSmallest},
    {"pattern", F::kText, T::kString, M::kEach},
    {"format", F::kText, T::kString, M::kEach},
    {"minimum", F::kNumber, T::kNumber, M::kEach},
    {"maximum", F::kNumber, T::kNumber, M::kEach},
    {"exclusiveMinimum", F::kNumber, T::kNumber, M::kEach},
    {"exclusiveMaximum", F::kNumber, T::kNumber, M::kEach},
    {"multipleOf", F::kAboveZero, T::kNumber, M::kEach},
    {"properties", F::kNamed, T::kObject, M::kEach},
    {"patternProperties", F::kNamed, T::kObject, M::kEach},
    {"additionalProperties", F::kSchema, T::kObject, M::kEach},
    {"propertyNames", F::kSchema, T::kObject, M::kEach},
    {"required", F::kNames, T::kObject, M::kEach},
    {"minProperties", F::kCount, T::kObject, M::kGreatest},
    {"maxProperties", F::kCount, T::kObject, M::kSmallest},
    {"dependentRequired", F::kNameLists, T::kObject, M::kEach},
    {"dependentSchemas", F::kNamed, T::kObject, M::kEach},
    {"items", F::kItems, T::kArray, M::kEach},
    {"prefixItems", F::kSchemas, T::kArray, M::kEach},
    {"additionalItems", F::kSchema, T::kArray, M::kEach},
    {"minItems", F::kCount, T::kArray, M::kGreatest},
    {"maxItems", F::kCount, T::kArray, M::kSmallest},
    {"uniqueItems", F::kBool, T::kArray, M::kEach},
    {"contains", F::kSchema, T::kArray, M::kRefused},
    {"minContains", F::kCount, T::kNone, M::kIgnored},  // without "contains"
    {"maxContains", F::kCount, T::kNone, M::kIgnored},
    {"dependencies", F::kAnything, T::kObject, M::kRefused},
    {"unevaluatedProperties", F::kSchema, T::kObject, M::kRefused},
    {"unevaluatedItems", F::kSchema, T::kArray, M::kRefused},
    {"$dynamicRef", F::kText, T::kAny, M::kRefused},
    {"$recursiveRef", F::kText, T::kAny, M::kRefused},
    {"$schema", F::kText, T::kNone, M::kIgnored},
    {"$id", F::kText, T::kNone, M::kIgnored},
    {"$anchor", F::kText, T::kNone, M::kIgnored},
    {"$dynamicAnchor", F::kText, T::kNone, M::kIgnored},
    {"$comment", F::kText, T::kNone, M::kIgnored},
    {"$defs", F::kNamed, T::kNone, M::kIgnored},
    {"definitions", F::kNamed, T::kNone, M::kIgnored},
    {"title", F::kText, T::kNone, M::kIgnored},
    {"description", F::kText, T::kNone, M::kIgnored},
    {"deprecated", F::kBool, T::kNone, M::kIgnored},
    {"readOnly", F::kBool, T::kNone, M::kIgnored},
    {"writeOnly", F::kBool, T::kNone, M::kIgnored},
    {"examples", F::kValues, T::kNone, M::kIgnored},
};

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                    "string", "object",  "array"};

bool IsSchema(const Json& value) {
  return value.is_object() || value.is_boolean();
}

bool AreDistinctTexts(const Json& list) {
  if (!list.is_array()) return false;
  std::set<std::string_view> known;
  return std::all_of(list.begin(), list.end(), [&](const Json& one) {
    return one.is_string() && known.insert(one.get_ref<const std::string&>()).second;
  });
}

// Returns the members by their names.
std::vector<std::pair<std::string_view, const Json*>> MembersOf(const Json& object) {
  std::vector<std::pair<std::string_view, const Json*>> members;
  members.reserve(object.size());
  for (const auto& [name, value] : object.get_ref<const Json::object_t&>()) {
    members.emplace_back(name, &value);
  }
  std::sort(members.begin(), members.end(),
            [](const auto& one, const auto& other) { return one.first < other.first; });
  return members;
}

bool AreTypes(const Json& value) {
  const Json list = value.is_array() ? value : Json::array({value});
  return AreDistinctTexts(list) && !list.empty() &&
         std::all_of(list.begin(), list.end(), [](const Json& type) {
           return std::find(kTypes.begin(), kTypes.end(), type.get_ref<const std::string&>()) !=
                  kTypes.end();
         });
}

}  // namespace

const SchemaKeyword* FindKeyword(std::string_view name) {
  const auto* const known =
      std::find_if(std::begin(kKeywords), std::end(kKeywords),
                   [&](const SchemaKeyword& keyword) { return keyword.name == name; });
  return known == std::end(kKeywords) ? nullptr : known;
}

bool HasForm(const Json& value, SchemaForm form) {
  switch (form) {
    case F::kAnything: return true;
    case F::kText: return value.is_string();
    case F::kBool: return value.is_boolean();
    case F::kNumber: return value.is_number();
    case F::kAboveZero: return value.is_number() && value > 0;
    case F::kCount: return HasSchemaType(value, "integer") && value >= 0;
    case F::kSchema: return IsSchema(value);
    case F::kSchemas:
      return value.is_array() && !value.empty() &&
             std::all_of(value.begin(), value.end(), IsSchema);
    case F::kNamed: return value.is_object() && std::all_of(value.begin(), value.end(), IsSchema);
    case F::kNames: return AreDistinctTexts(value);
    case F::kNameLists:
      return value.is_object() && std::all_of(value.begin(), value.end(), AreDistinctTexts);
    case F::kTypes: return AreTypes(value);
    case F::kValues: return value.is_array();
    case F::kItems:
      return IsSchema(value) ||
             (value.is_array() && std::all_of(value.begin(), value.end(), IsSchema));
  }
  return false;
}

std::string_view NameOf(SchemaForm form) {
  switch (form) {
    case F::kAnything: return "a value";
    case F::kText: return "a string";
    case F::kBool: return "a boolean";
    case F::kNumber: return "a number";
    case F::kAboveZero: return "a number above 0";
    case F::kCount: return "a whole number that is not negative";
    case F::kSchema: return "a schema";
    case F::kSchemas: return "an array of schemas, at least one";
    case F::kNamed: return "an object of schemas";
    case F::kNames: return "an array of strings that differ";
    case F::kNameLists: return "an object of arrays of strings that differ";
    case F::kTypes: return "the name of a type, or an array of such names that differ";
    case F::kValues: return "an array";
    case F::kItems: return "a schema";
  }
  return "";
}

bool AreSame(const Json& a, const Json& b, std::size_t& steps) {
  ++steps;
  if (!a.is_structured() || !b.is_structured()) return a == b;
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_array()) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!AreSame(a[i], b[i], steps)) return false;
    }
    return true;
  }
  const auto members_a = MembersOf(a);
  const auto members_b = MembersOf(b);
  steps += 2 * a.size();
  return std::equal(members_a.begin(), members_a.end(), members_b.begin(),
                    [&](const auto& one, const auto& other) {
                      return one.first == other.first && AreSame(*one.second, *other.second, steps);
                    });
}

bool HasSchemaType(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "number") return value.is_number();
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
}

}  // namespace kvcache
