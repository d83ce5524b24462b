#include "grammar/schema_merge.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "grammar/schema_scalars.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns a schema for what both allow.
Json Both(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  if (a == false || b == false) return false;
  if (a.is_object() && a.size() == 1 && a.contains("allOf")) {
    Json more = a;
    more["allOf"].push_back(b);
    return more;
  }
  return {{"allOf", Json::array({a, b})}};
}

// Returns the values of a list that another has too.
Json Common(const Json& a, const Json& b) {
  Json common = Json::array();
  for (const Json& value : a) {
    if (std::find(b.begin(), b.end(), value) != b.end()) common.push_back(value);
  }
  return common;
}

// Returns the types that both name; integers are numbers.
Json CommonTypes(const Json& a, const Json& b) {
  const Json first = a.is_array() ? a : Json::array({a});
  const Json second = b.is_array() ? b : Json::array({b});
  const auto has = [](const Json& list, const char* type) {
    return std::find(list.begin(), list.end(), type) != list.end();
  };
  Json common = Common(first, second);
  const bool whole = (has(first, "integer") && has(second, "number")) ||
                     (has(first, "number") && has(second, "integer"));
  if (whole && !has(common, "integer") && !has(common, "number")) common.push_back("integer");
  return common;
}

// Returns what `own` says of properties that `other` names and it does not.
Json Others(const Json& own) {
  return own.value("additionalProperties", Json(true));
}

Json MergedProperties(const Json& a, const Json& b) {
  static const Json kNone = Json::object();
  const Json& first = a.contains("properties") ? a["properties"] : kNone;
  const Json& second = b.contains("properties") ? b["properties"] : kNone;
  Json merged = Json::object();
  for (const auto& [name, schema] : first.items()) {
    merged[name] = Both(schema, second.contains(name) ? second[name] : Others(b));
  }
  for (const auto& [name, schema] : second.items()) {
    if (!first.contains(name)) merged[name] = Both(schema, Others(a));
  }
  return merged;
}

// Takes keywords one by one.
class Merger {
 public:
  Merger(Json& merged, const std::string& place) : merged_(merged), place_(place) {}

  // Combines two values that differ.
  Status Take(const std::string& key, const Json& value) {
    Json& own = merged_[key];
    if (key == "type") return Narrow(key, CommonTypes(own, value));
    if (key == "enum") return Narrow(key, Common(own, value));
    if (key == "const") return Never();
    if (key == "required") {
      for (const Json& name : value) {
        if (std::find(own.begin(), own.end(), name) == own.end()) own.push_back(name);
      }
    } else if (IsOneOf(key,
                       {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})) {
      if (value > own) own = value;
    } else if (IsOneOf(key,
                       {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})) {
      if (value < own) own = value;
    } else if (key == "items" || key == "additionalProperties") {
      own = Both(own, value);
    } else if (key == "uniqueItems") {
      own = true;
    } else if (IsOneOf(key,
                       {"pattern", "format", "multipleOf", "prefixItems", "anyOf", "oneOf", "not",
                        "if", "then", "else", "contains", "propertyNames", "patternProperties"})) {
      return SchemaError(place_, StrCat("has two schemas in 'allOf' with different ", Quoted(key),
                                        ", which this server does not support"));
    }
    return Status::Ok();  // what only describes stays as it is
  }

  // Returns whether no value is allowed any more.
  bool allows_nothing() const { return nothing_; }

 private:
  static bool IsOneOf(const std::string& key, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), key) != names.end();
  }
  Status Never() {
    nothing_ = true;
    return Status::Ok();
  }
  Status Narrow(const std::string& key, Json values) {
    if (values.empty()) return Never();
    merged_[key] = std::move(values);
    return Status::Ok();
  }

  Json& merged_;
  const std::string& place_;
  bool nothing_ = false;
};

Result<Json> MergeTwo(const Json& a, const Json& b, const std::string& place) {
  if (a == false || b == false) return Json(false);
  if (a == true) return b;
  if (b == true) return a;
  // Items behind the first ones of the other would be held by two schemas at a time.
  if (a.contains("prefixItems") != b.contains("prefixItems") &&
      (a.contains("items") || b.contains("items"))) {
    return SchemaError(place,
                       "has 'prefixItems' and 'items' in different schemas of 'allOf', which this "
                       "server does not support");
  }
  Json merged = a;
  Merger merger(merged, place);
  for (const auto& [key, value] : b.items()) {
    if (key == "properties" || key == "nullable") continue;
    if (!merged.contains(key)) {
      merged[key] = value;
    } else if (merged[key] != value) {
      KVCACHE_RETURN_IF_ERROR(merger.Take(key, value));
    }
  }
  if (merger.allows_nothing()) return Json(false);
  if (a.contains("properties") || b.contains("properties")) {
    merged["properties"] = MergedProperties(a, b);
  }
  if (merged.contains("nullable")) merged["nullable"] = b.value("nullable", Json(false)) == true;
  return merged;
}

}  // namespace

Result<Json> MergeSchemas(const std::vector<Json>& schemas, const std::string& place) {
  Json merged = true;
  for (const Json& schema : schemas) {
    KVCACHE_ASSIGN_OR_RETURN(merged, MergeTwo(merged, schema, place));
  }
  return merged;
}

}  // namespace kvcache
