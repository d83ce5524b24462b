// JSON schemas that hold together: those of '$ref' and 'allOf' beside the one that names them.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

// A schema without what its '$ref' and 'allOf' name: these are parts of their own.
struct SchemaPart {
  // Alternatives of the schema that were chosen, so that they are not chosen again.
  static constexpr std::uint8_t kNullable = 1;
  static constexpr std::uint8_t kAnyOf = 2;
  static constexpr std::uint8_t kOneOf = 4;
  static constexpr std::uint8_t kIf = 8;
  static constexpr std::uint8_t kDependent = 16;

  const nlohmann::ordered_json* schema = nullptr;
  std::uint8_t chosen = 0;
  friend auto operator<=>(const SchemaPart&, const SchemaPart&) = default;
};
using SchemaParts = std::vector<SchemaPart>;

// The schemas of a list's items: of the first ones each (an array), and of all behind them; null: any item.
struct SchemaItems {
  const nlohmann::ordered_json* first = nullptr;
  const nlohmann::ordered_json* rest = nullptr;
};
SchemaItems ItemsOf(const nlohmann::ordered_json& schema);

// Return kInvalidArgument with the place in the schema, such as "#/properties/a".
Status SchemaError(const std::string& place, const std::string& problem);
Status UnsupportedKeyword(const std::string& place, std::string_view keyword);

// Returns the values that the parts give a keyword.
std::vector<const nlohmann::ordered_json*> EachOf(const SchemaParts& parts, const char* keyword);

// Returns whether a schema of 'not' has nothing but 'enum', 'pattern' or 'format', or the type "integer".
bool IsSimpleNot(const nlohmann::ordered_json& refused);
// Returns those of the parts.
std::vector<const nlohmann::ordered_json*> SimpleNotsOf(const SchemaParts& parts);

// Returns the count that holds of all that the parts give, as the table of keywords says; none: no part gives one.
// Errors: kInvalidArgument: it is above 10,000, or 100,000 characters.
Result<std::optional<std::int64_t>> CountOf(const SchemaParts& parts, const char* keyword,
                                            const std::string& place);

}  // namespace kvcache
