#include "grammar/schema_disjoint.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "grammar/schema_keywords.h"

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

Json ListOf(const Json& types) {
  return types.is_array() ? types : Json::array({types});
}

// Compares pairs of schemas, as far as its steps go.
class Comparer {
 public:
  bool AreApart(const Json& a, const Json& b) {
    if (!a.is_object() || !b.is_object() || !Step(1)) return false;
    if (ShareNone(ConstantsOf(a), ConstantsOf(b))) return true;
    if (AreOfOtherType(a, b) || AreOfOtherType(b, a)) return true;
    const bool objects = a.value("type", Json()) == "object" && b.value("type", Json()) == "object";
    if (!objects || !a.contains("properties") || !b.contains("properties")) return false;
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

  // Returns whether the types or constants of `a` are none of the types of `b`.
  bool AreOfOtherType(const Json& a, const Json& b) {
    if (!b.contains("type")) return false;
    const Json types_b = ListOf(b["type"]);
    const auto is_of_b = [&](auto&& matches) {
      return std::any_of(types_b.begin(), types_b.end(), [&](const Json& type) {
        return type.is_string() && matches(type.get_ref<const std::string&>());
      });
    };
    if (const auto constants = ConstantsOf(a)) {
      return Step(constants->size()) &&
             std::none_of(constants->begin(), constants->end(), [&](const Json& value) {
               return is_of_b([&](const std::string& type) { return HasSchemaType(value, type); });
             });
    }
    if (!a.contains("type")) return false;
    const Json types_a = ListOf(a["type"]);
    return std::none_of(types_a.begin(), types_a.end(), [&](const Json& own) {
      return is_of_b([&](const std::string& type) {
        const bool numbers =
            (own == "integer" && type == "number") || (own == "number" && type == "integer");
        return own == type || numbers;
      });
    });
  }

  bool ShareNone(const std::optional<Json>& a, const std::optional<Json>& b) {
    if (!a || !b) return false;
    return std::none_of(a->begin(), a->end(), [&](const Json& value) {
      return !Step(b->size()) || std::any_of(b->begin(), b->end(), [&](const Json& other) {
        return AreSame(value, other);
      });
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

bool AreDisjoint(const std::vector<const Json*>& schemas) {
  if (std::ssize(schemas) > kMostSchemas) return false;
  Comparer comparer;
  for (std::size_t i = 0; i < schemas.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!comparer.AreApart(*schemas[i], *schemas[j])) return false;
    }
  }
  return true;
}

}  // namespace kvcache
