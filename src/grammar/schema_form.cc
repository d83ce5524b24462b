#include "grammar/schema_form.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "grammar/schema_scalars.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

enum class Form : std::uint8_t {
  kText,
  kBool,
  kNumber,
  kAboveZero,
  kCount,
  kSchema,
  kSchemas,  // an array of schemas, at least one
  kNamed,    // an object of schemas
  kNames,    // an array of texts, each once
  kTypes,    // a name or an array of names, each once
  kValues,   // an array
  kItems,    // a schema, or in old drafts an array of schemas
};

struct Keyword {
  std::string_view name;
  Form form;
};

constexpr Keyword kKeywords[] = {
    {"$schema", Form::kText},
    {"$id", Form::kText},
    {"$ref", Form::kText},
    {"$anchor", Form::kText},
    {"$comment", Form::kText},
    {"title", Form::kText},
    {"description", Form::kText},
    {"pattern", Form::kText},
    {"format", Form::kText},
    {"nullable", Form::kBool},
    {"uniqueItems", Form::kBool},
    {"deprecated", Form::kBool},
    {"readOnly", Form::kBool},
    {"writeOnly", Form::kBool},
    {"minimum", Form::kNumber},
    {"maximum", Form::kNumber},
    {"exclusiveMinimum", Form::kNumber},
    {"exclusiveMaximum", Form::kNumber},
    {"multipleOf", Form::kAboveZero},
    {"minLength", Form::kCount},
    {"maxLength", Form::kCount},
    {"minItems", Form::kCount},
    {"maxItems", Form::kCount},
    {"minContains", Form::kCount},
    {"maxContains", Form::kCount},
    {"minProperties", Form::kCount},
    {"maxProperties", Form::kCount},
    {"items", Form::kItems},
    {"additionalProperties", Form::kSchema},
    {"additionalItems", Form::kSchema},
    {"propertyNames", Form::kSchema},
    {"contains", Form::kSchema},
    {"not", Form::kSchema},
    {"if", Form::kSchema},
    {"then", Form::kSchema},
    {"else", Form::kSchema},
    {"anyOf", Form::kSchemas},
    {"oneOf", Form::kSchemas},
    {"allOf", Form::kSchemas},
    {"prefixItems", Form::kSchemas},
    {"properties", Form::kNamed},
    {"patternProperties", Form::kNamed},
    {"$defs", Form::kNamed},
    {"definitions", Form::kNamed},
    {"required", Form::kNames},
    {"type", Form::kTypes},
    {"enum", Form::kValues},
    {"examples", Form::kValues},
};

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

bool HasForm(const Json& value, Form form) {
  switch (form) {
    case Form::kText: return value.is_string();
    case Form::kBool: return value.is_boolean();
    case Form::kNumber: return value.is_number();
    case Form::kAboveZero: return value.is_number() && value > 0;
    case Form::kCount: return HasSchemaType(value, "integer") && value >= 0;
    case Form::kSchema: return IsSchema(value);
    case Form::kSchemas:
      return value.is_array() && !value.empty() &&
             std::all_of(value.begin(), value.end(), IsSchema);
    case Form::kNamed:
      return value.is_object() && std::all_of(value.begin(), value.end(), IsSchema);
    case Form::kNames: return AreDistinctTexts(value);
    case Form::kTypes: return value.is_string() || (!value.empty() && AreDistinctTexts(value));
    case Form::kValues: return value.is_array();
    case Form::kItems: return IsSchema(value) || HasForm(value, Form::kSchemas);
  }
  return true;
}

const char* NameOf(Form form) {
  switch (form) {
    case Form::kText: return "a string";
    case Form::kBool: return "a boolean";
    case Form::kNumber: return "a number";
    case Form::kAboveZero: return "a number above 0";
    case Form::kCount: return "a whole number that is not negative";
    case Form::kSchema: return "a schema";
    case Form::kSchemas: return "an array of schemas, at least one";
    case Form::kNamed: return "an object of schemas";
    case Form::kNames: return "an array of strings that differ";
    case Form::kTypes: return "the name of a type, or an array of such names that differ";
    case Form::kValues: return "an array";
    case Form::kItems: return "a schema";
  }
  return "";
}

}  // namespace

Status CheckSchemaForm(const Json& schema, const std::string& place) {
  for (const auto& [key, value] : schema.items()) {
    const auto* const known =
        std::find_if(std::begin(kKeywords), std::end(kKeywords),
                     [&key = key](const Keyword& keyword) { return keyword.name == key; });
    if (known == std::end(kKeywords) || HasForm(value, known->form)) continue;
    return SchemaError(place, StrCat("has ", Quoted(key), " that is not ", NameOf(known->form)));
  }
  return Status::Ok();
}

}  // namespace kvcache
