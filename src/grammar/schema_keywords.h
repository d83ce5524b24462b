// The keywords of JSON schemas.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache {

inline constexpr std::array<std::string_view, 7> kSchemaTypes = {
    "null", "boolean", "integer", "number", "string", "object", "array"};
// Those that would allow fewer values and are not enforced.
inline constexpr std::array<std::string_view, 24> kRefusedKeywords = {"not",
                                                                      "if",
                                                                      "then",
                                                                      "else",
                                                                      "uniqueItems",
                                                                      "contains",
                                                                      "minContains",
                                                                      "maxContains",
                                                                      "patternProperties",
                                                                      "propertyNames",
                                                                      "dependencies",
                                                                      "dependentRequired",
                                                                      "dependentSchemas",
                                                                      "unevaluatedProperties",
                                                                      "unevaluatedItems",
                                                                      "additionalItems",
                                                                      "$dynamicRef",
                                                                      "$recursiveRef",
                                                                      "$anchor",
                                                                      "$dynamicAnchor",
                                                                      "contentEncoding",
                                                                      "contentMediaType",
                                                                      "contentSchema",
                                                                      "$vocabulary"};
// Those that allow fewer values.
inline constexpr std::array<std::string_view, 25> kAssertionKeywords = {"type",
                                                                        "enum",
                                                                        "const",
                                                                        "anyOf",
                                                                        "oneOf",
                                                                        "allOf",
                                                                        "$ref",
                                                                        "properties",
                                                                        "required",
                                                                        "additionalProperties",
                                                                        "items",
                                                                        "prefixItems",
                                                                        "minItems",
                                                                        "maxItems",
                                                                        "minLength",
                                                                        "maxLength",
                                                                        "pattern",
                                                                        "format",
                                                                        "minimum",
                                                                        "maximum",
                                                                        "exclusiveMinimum",
                                                                        "exclusiveMaximum",
                                                                        "multipleOf",
                                                                        "minProperties",
                                                                        "maxProperties"};

// Those that only describe, or hold what '$ref' finds from the root.
inline constexpr std::array<std::string_view, 9> kDescriptionKeywords = {
    "$defs", "definitions", "$schema",  "$id",    "$comment",
    "title", "description", "examples", "default"};

inline bool IsKeywordOf(const std::string& name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Copies what a schema says of values, without some keywords.
inline nlohmann::ordered_json AssertionsOf(const nlohmann::ordered_json& schema,
                                           std::initializer_list<std::string_view> without) {
  nlohmann::ordered_json::object_t copy;
  for (const auto& [key, value] : schema.items()) {
    if (IsKeywordOf(key, kDescriptionKeywords) ||
        IsKeywordOf(key, {without.begin(), without.size()}))
      continue;
    copy.push_back({key, value});
  }
  return nlohmann::ordered_json(std::move(copy));
}

}  // namespace kvcache
