// The table of the keywords of JSON schemas: one entry for each.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvcache {

// What the standard takes as a keyword's value.
enum class SchemaForm : std::uint8_t {
  kAnything,
  kText,
  kBool,
  kNumber,
  kAboveZero,
  kCount,
  kSchema,
  kSchemas,    // an array of schemas, at least one
  kNamed,      // an object of schemas
  kNames,      // an array of texts, each once
  kNameLists,  // an object of such arrays
  kTypes,      // a name or an array of names, each once
  kValues,     // an array
  kItems,      // a schema, or in old drafts an array of schemas
};

// The values that a keyword may refuse.
enum class SchemaType : std::uint8_t { kNone, kAny, kNumber, kString, kObject, kArray };

// The keyword of several schemas that hold together.
enum class SchemaMerge : std::uint8_t {
  kIgnored,   // it refuses nothing
  kEach,      // each holds
  kGreatest,  // the greatest count holds
  kSmallest,
  kRefused,  // it is not enforced: a schema that has it is refused
};

struct SchemaKeyword {
  std::string_view name;
  SchemaForm form;
  SchemaType type;
  SchemaMerge merge;
};

// Returns the entry of a keyword; null: it is not known, and refuses nothing.
const SchemaKeyword* FindKeyword(std::string_view name);

// Returns whether a value has the form. A form's name is for messages: "a number above 0".
bool HasForm(const nlohmann::ordered_json& value, SchemaForm form);
std::string_view NameOf(SchemaForm form);

// Returns whether a value has a type of JSON schema, such as "integer".
bool HasSchemaType(const nlohmann::ordered_json& value, std::string_view type);

// Returns whether two values are the same, whatever the order of their keys. Adds how many values were compared to
// `steps`.
bool AreSame(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, std::size_t& steps);

}  // namespace kvcache
