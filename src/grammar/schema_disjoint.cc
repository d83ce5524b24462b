#include "grammar/schema_disjoint.h"

#include <algorithm>
#include <optional>
#include <string>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns the constants or, for objects, those of a required property; none if they are not known.
std::optional<Json> ConstantsOf(const Json& schema) {
  if (!schema.is_object()) return {};
  if (schema.contains("const")) return Json::array({schema["const"]});
  if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
  return {};
}
bool ShareNone(const std::optional<Json>& a, const std::optional<Json>& b) {
  if (!a || !b) return false;
  return std::none_of(a->begin(), a->end(), [&](const Json& value) {
    return std::find(b->begin(), b->end(), value) != b->end();
  });
}
bool Requires(const Json& schema, const std::string& key) {
  const Json required = schema.value("required", Json::array());
  return required.is_array() && std::find(required.begin(), required.end(), key) != required.end();
}
bool AreApart(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return false;
  if (ShareNone(ConstantsOf(a), ConstantsOf(b))) return true;
  const Json type_a = a.value("type", Json());
  const Json type_b = b.value("type", Json());
  if (!type_a.is_string() || !type_b.is_string()) return false;
  if (type_a != type_b) {
    const auto is_number = [](const Json& type) { return type == "integer" || type == "number"; };
    return !is_number(type_a) || !is_number(type_b);
  }
  if (type_a != "object" || !a.contains("properties") || !b.contains("properties")) return false;
  for (const auto& [key, value] : a["properties"].items()) {
    if (Requires(a, key) && Requires(b, key) && b["properties"].contains(key) &&
        ShareNone(ConstantsOf(value), ConstantsOf(b["properties"][key]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool AreDisjoint(const Json& schemas) {
  for (std::size_t i = 0; i < schemas.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!AreApart(schemas[i], schemas[j])) return false;
    }
  }
  return true;
}

}  // namespace kvcache
