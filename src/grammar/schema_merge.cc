#include "grammar/schema_merge.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "grammar/schema_scalars.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns a schema for what both allow.
Json Both(Json a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  if (a == false || b == false) return false;
  if (a.is_object() && a.size() == 1 && a.contains("allOf")) {
    a["allOf"].push_back(b);
    return a;
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

// Bounds what a merge takes.
class Bounds {
 public:
  explicit Bounds(const std::string& place) : place_(place) {}

  // Lists and properties are compared one by one.
  Status Check(const Json& schema) const {
    for (const char* key : {"properties", "required", "enum"}) {
      const auto found = schema.find(key);
      if (found == schema.end() || found->size() <= kMostEntries) continue;
      return SchemaError(place_, StrCat("has more than ", kMostEntries, " entries in a ",
                                        Quoted(key), " of schemas that hold together"));
    }
    return Status::Ok();
  }
  // Counts copies of a schema.
  Status Copy(const Json& schema, std::size_t times) {
    if (schema.is_boolean()) return Status::Ok();
    copied_bytes_ += times * schema.dump(-1, ' ', false, Json::error_handler_t::replace).size();
    if (copied_bytes_ <= kMostCopiedBytes) return Status::Ok();
    return SchemaError(place_, "has 'additionalProperties' that hold for too many properties");
  }

 private:
  static constexpr std::size_t kMostEntries = 1024;
  static constexpr std::size_t kMostCopiedBytes = std::size_t{1} << 20;
  const std::string& place_;
  std::size_t copied_bytes_ = 0;
};

// Merges properties. `others`: what each schema says of the properties that only the other names.
Result<Json> MergedProperties(Json first, const Json& second, const std::pair<Json, Json>& others,
                              Bounds& bounds) {
  KVCACHE_RETURN_IF_ERROR(bounds.Copy(others.first, second.size()));
  KVCACHE_RETURN_IF_ERROR(bounds.Copy(others.second, first.size()));
  std::map<std::string_view, const Json*> in_second;
  for (const auto& [name, schema] : second.get_ref<const Json::object_t&>()) {
    in_second.emplace(name, &schema);
  }
  Json::object_t merged;
  std::set<std::string_view> in_first;
  for (auto& [name, schema] : first.get_ref<Json::object_t&>()) {
    in_first.insert(name);
    const auto found = in_second.find(name);
    merged.push_back(
        {name, Both(std::move(schema), found != in_second.end() ? *found->second : others.second)});
  }
  for (const auto& [name, schema] : second.get_ref<const Json::object_t&>()) {
    if (!in_first.contains(name)) merged.push_back({name, Both(schema, others.first)});
  }
  return Json(std::move(merged));
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
      own = Both(std::move(own), value);
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

Result<Json> MergeTwo(Json a, const Json& b, const std::string& place, Bounds& bounds) {
  if (a == false || b == false) return Json(false);
  if (a == true) return b;
  if (b == true) return a;
  KVCACHE_RETURN_IF_ERROR(bounds.Check(a));
  KVCACHE_RETURN_IF_ERROR(bounds.Check(b));
  // Items behind the first ones of the other would be held by two schemas at a time.
  if (a.contains("prefixItems") != b.contains("prefixItems") &&
      (a.contains("items") || b.contains("items"))) {
    return SchemaError(place,
                       "has 'prefixItems' and 'items' in different schemas of 'allOf', which this "
                       "server does not support");
  }
  static const Json kNone = Json::object();
  const bool has_properties = a.contains("properties") || b.contains("properties");
  Json properties = Json::object();
  if (a.contains("properties")) properties = std::move(a["properties"]);
  const std::pair<Json, Json> others(Others(a), Others(b));
  Json merged = std::move(a);
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
  if (has_properties) {
    KVCACHE_ASSIGN_OR_RETURN(
        merged["properties"],
        MergedProperties(std::move(properties), b.contains("properties") ? b["properties"] : kNone,
                         others, bounds));
  }
  if (merged.contains("nullable")) merged["nullable"] = b.value("nullable", Json(false)) == true;
  return merged;
}

}  // namespace

Result<Json> MergeSchemas(const std::vector<Json>& schemas, const std::string& place) {
  Json merged = true;
  Bounds bounds(place);
  for (const Json& schema : schemas) {
    KVCACHE_ASSIGN_OR_RETURN(merged, MergeTwo(std::move(merged), schema, place, bounds));
  }
  return merged;
}

}  // namespace kvcache
