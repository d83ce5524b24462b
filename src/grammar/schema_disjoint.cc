#include "grammar/schema_disjoint.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostSchemas = 1024;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 22;

// Returns the values of "enum" or "const"; none if the schema has neither.
std::optional<Json> ConstantsOf(const Json& schema) {
  if (!schema.is_object()) return {};
  if (schema.contains("const")) return Json::array({schema["const"]});
  if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
  return {};
}

// Compares pairs of schemas, as far as its steps go.
class Comparer {
 public:
  bool AreApart(const Json& a, const Json& b) {
    if (!a.is_object() || !b.is_object() || !Step(1)) return false;
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
      if (!Requires(a, key) || !Requires(b, key)) continue;
      if (!Step(b["properties"].size()) || !b["properties"].contains(key)) continue;
      if (ShareNone(ConstantsOf(value), ConstantsOf(b["properties"][key]))) return true;
    }
    return false;
  }

 private:
  // Returns whether this many comparisons may be made.
  bool Step(std::size_t count) {
    steps_ += static_cast<std::int64_t>(std::min<std::size_t>(count, kMostSteps));
    return steps_ <= kMostSteps;
  }

  bool ShareNone(const std::optional<Json>& a, const std::optional<Json>& b) {
    if (!a || !b) return false;
    return std::none_of(a->begin(), a->end(), [&](const Json& value) {
      return !Step(b->size()) || std::find(b->begin(), b->end(), value) != b->end();
    });
  }

  bool Requires(const Json& schema, const std::string& key) {
    if (!schema.contains("required")) return false;
    const Json& names = schema["required"];
    return names.is_array() && Step(names.size()) &&
           std::find(names.begin(), names.end(), key) != names.end();
  }

  std::int64_t steps_ = 0;
};

}  // namespace

bool AreDisjoint(const Json& schemas) {
  if (std::ssize(schemas) > kMostSchemas) return false;
  Comparer comparer;
  for (std::size_t i = 0; i < schemas.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!comparer.AreApart(schemas[i], schemas[j])) return false;
    }
  }
  return true;
}

}  // namespace kvcache
