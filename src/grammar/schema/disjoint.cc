#include "grammar/schema/disjoint.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "grammar/schema/keywords.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxSchemas = 1024;
constexpr std::int64_t kMaxDisjointSteps = std::int64_t{1} << 22;

// The values of "enum" or "const".
struct Constants {
  const Json* first = nullptr;  // null: the schema has neither
  std::size_t count = 0;
};

Constants ConstantsOf(const Json& schema) {
  if (!schema.is_object()) return {};
  if (const auto found = schema.find("const"); found != schema.end()) return {&*found, 1};
  const auto found = schema.find("enum");
  if (found == schema.end() || !found->is_array()) return {};
  static const Json kNone;
  return {found->empty() ? &kNone : &found->front(), found->size()};
}

Json ListOf(const Json& types) {
  return types.is_array() ? types : Json::array({types});
}

// Compares pairs of schemas, as far as its steps go.
class Comparer {
 public:
  bool AreApart(const Json& a, const Json& b) {
    if (!a.is_object() || !b.is_object() || !Step(a.size() + b.size())) return false;
    if (ShareNull(a, b)) return false;
    if (ShareNone(ConstantsOf(a), ConstantsOf(b))) return true;
    if (AreOfOtherType(a, b) || AreOfOtherType(b, a)) return true;
    const bool objects = a.value("type", Json()) == "object" && b.value("type", Json()) == "object";
    if (!objects || !a.contains("properties") || !b.contains("properties")) return false;
    for (const auto& [key, value] : a["properties"].items()) {
      if (!Requires(a, key) || !Requires(b, key)) continue;
      if (!Step(b["properties"].size()) || !b["properties"].contains(key)) continue;
      const Json& other = b["properties"][key];
      if (ShareNull(value, other)) continue;
      if (ShareNone(ConstantsOf(value), ConstantsOf(other))) return true;
    }
    return false;
  }

 private:
  // Returns whether this many comparisons may be made.
  bool Step(std::size_t count) {
    steps_ += static_cast<std::int64_t>(std::min<std::size_t>(count, kMaxDisjointSteps));
    return steps_ <= kMaxDisjointSteps;
  }

  // Returns whether null may belong to both, where one is nullable. The rest of a schema does not say so.
  bool ShareNull(const Json& a, const Json& b) {
    return (IsNullable(a) && MayBeNull(b)) || (IsNullable(b) && MayBeNull(a));
  }
  static bool IsNullable(const Json& schema) {
    return schema.is_object() && schema.value("nullable", Json(false)) == true;
  }
  // Returns false only if the schema refuses null.
  bool MayBeNull(const Json& schema) {
    if (!schema.is_object() || IsNullable(schema)) return true;
    const Constants constants = ConstantsOf(schema);
    if (!Step(constants.count)) return true;
    const auto is_null = [](const Json& value) { return value.is_null(); };
    if (constants.first != nullptr) {
      return std::any_of(constants.first, constants.first + constants.count, is_null);
    }
    if (!schema.contains("type")) return true;
    const Json types = ListOf(schema["type"]);
    return std::find(types.begin(), types.end(), "null") != types.end();
  }

  // Returns whether the types or constants of `a`, but for what is nullable, are none of the types of `b`.
  bool AreOfOtherType(const Json& a, const Json& b) {
    if (!b.contains("type")) return false;
    const Json types_b = ListOf(b["type"]);
    const auto is_of_b = [&](auto&& matches) {
      return std::any_of(types_b.begin(), types_b.end(), [&](const Json& type) {
        return type.is_string() && matches(type.get_ref<const std::string&>());
      });
    };
    const Constants constants = ConstantsOf(a);
    if (constants.first != nullptr) {
      return Step(constants.count) &&
             std::none_of(
                 constants.first, constants.first + constants.count, [&](const Json& value) {
                   return is_of_b(
                       [&](const std::string& type) { return HasSchemaType(value, type); });
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

  bool ShareNone(const Constants& a, const Constants& b) {
    if (a.first == nullptr || b.first == nullptr) return false;
    for (std::size_t i = 0; i < a.count; ++i) {
      for (std::size_t j = 0; j < b.count; ++j) {
        std::size_t steps = 0;
        if (AreSame(a.first[i], b.first[j], steps) || !Step(steps)) return false;
      }
    }
    return true;
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
  if (std::ssize(schemas) > kMaxSchemas) return false;
  Comparer comparer;
  for (std::size_t i = 0; i < schemas.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!comparer.AreApart(*schemas[i], *schemas[j])) return false;
    }
  }
  return true;
}

}  // namespace kvcache
