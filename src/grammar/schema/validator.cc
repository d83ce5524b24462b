#include "grammar/schema/validator.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "grammar/schema/form.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/parts.h"

namespace kvcache {
namespace {

constexpr int kMaxValidatorDepth = 200;
constexpr std::size_t kMaxValidatorSteps = 10'000'000;
constexpr std::size_t kStepsOfSchema = 10;  // beside those of its keywords

using Json = nlohmann::ordered_json;

}  // namespace

Result<bool> SchemaValidator::Allows(const Json& schema, const Json& value,
                                     const std::string& place, const Json* given) {
  place_ = place;
  depth_ = 0;
  asked_ = &value;
  given_ = given;
  return Check(schema, value);
}

Status SchemaValidator::Spend(std::size_t steps) {
  steps_ += steps;
  if (steps_ <= kMaxValidatorSteps) return Status::Ok();
  return SchemaError(place_,
                     StrCat("has constants that are too many to check: this takes more than ",
                            kMaxValidatorSteps, " steps"));
}

Result<bool> SchemaValidator::Check(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  KVCACHE_RETURN_IF_ERROR(Spend(kStepsOfSchema));
  if (depth_ >= kMaxValidatorDepth)
    return SchemaError(place_, "is nested too deep beside a constant");
  if (!schema.is_object()) return SchemaError(place_, "must be an object or a boolean");
  // Its keywords are looked up one after another.
  KVCACHE_RETURN_IF_ERROR(Spend(10 * schema.size()));
  if (checked_.insert(&schema).second) KVCACHE_RETURN_IF_ERROR(CheckSchemaForm(schema, place_));
  if (value.is_null() && schema.value("nullable", Json(false)) == true) return true;
  ++depth_;
  for (const auto& [keyword, its] : schema.items()) {
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, CheckKeyword(keyword, its, schema, value));
    if (allowed) continue;
    --depth_;
    return false;
  }
  --depth_;
  if (value.is_object()) return CheckObject(schema, value);
  if (value.is_array()) return CheckArray(schema, value);
  if (value.is_string()) return AllowsText(schema, value.get_ref<const std::string&>());
  if (value.is_number()) {
    KVCACHE_ASSIGN_OR_RETURN(const NumberRange range, NumbersOf({{&schema}}, false, place_));
    return range.Has(DecimalOf(value));
  }
  return true;
}

Result<bool> SchemaValidator::AllowsText(const Json& schema, const std::string& text) {
  auto& texts = texts_[&schema];
  if (texts == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(texts, TextsOf({{&schema}}, place_, programs_));
  }
  auto has = programs_.Has(*texts, text);
  if (has.ok()) return has;
  return SchemaError(place_, StrCat("has constants whose text ", has.status().message()));
}

Result<bool> SchemaValidator::IsSame(const Json& a, const Json& b) {
  std::size_t steps = 0;
  const bool same = AreSame(a, b, steps);
  KVCACHE_RETURN_IF_ERROR(Spend(steps));
  return same;
}

Result<bool> SchemaValidator::IsOneOf(const Json& constants, const Json& value) {
  for (const Json& one : constants) {
    KVCACHE_ASSIGN_OR_RETURN(const bool same, IsSame(one, value));
    if (same) return true;
  }
  return false;
}

Result<bool> SchemaValidator::CheckKeyword(const std::string& keyword, const Json& own,
                                           const Json& schema, const Json& value) {
  if (keyword == "type") {
    const Json list = own.is_array() ? own : Json::array({own});
    return std::any_of(list.begin(), list.end(), [&](const Json& type) {
      return HasSchemaType(value, type.get_ref<const std::string&>());
    });
  }
  if (&own == given_ && &value == asked_) return true;
  if (keyword == "const") return IsSame(own, value);
  if (keyword == "enum") return IsOneOf(own, value);
  const SchemaKeyword* const known = FindKeyword(keyword);
  const bool matters = known != nullptr && known->merge == SchemaMerge::kRefused &&
                       ((known->type == SchemaType::kArray && value.is_array()) ||
                        (known->type == SchemaType::kObject && value.is_object()) ||
                        known->type == SchemaType::kAny);
  if (matters) return UnsupportedKeyword(place_, keyword);
  return CheckCombined(keyword, own, schema, value);
}

Result<bool> SchemaValidator::CheckCombined(const std::string& keyword, const Json& own,
                                            const Json& schema, const Json& value) {
  if (keyword == "$ref") {
    KVCACHE_ASSIGN_OR_RETURN(const Json* const target,
                             references_.Target(own.get<std::string>(), place_));
    return Check(*target, value);
  }
  if (keyword == "not") {
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(own, value));
    return !allowed;
  }
  if (keyword == "if") {
    KVCACHE_ASSIGN_OR_RETURN(const bool holds, Check(own, value));
    const auto branch = schema.find(holds ? "then" : "else");
    return branch == schema.end() ? Result<bool>(true) : Check(*branch, value);
  }
  const bool all = keyword == "allOf";
  if (!all && keyword != "anyOf" && keyword != "oneOf") return true;
  const std::size_t enough = keyword == "anyOf" ? 1 : own.size();
  KVCACHE_ASSIGN_OR_RETURN(const std::size_t count, CountOfAllowing(own, value, enough));
  return all ? count == own.size() : keyword == "anyOf" ? count > 0 : count == 1;
}

Result<std::size_t> SchemaValidator::CountOfAllowing(const Json& schemas, const Json& value,
                                                     std::size_t enough) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < schemas.size() && count < enough; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(schemas[i], value));
    count += allowed ? 1 : 0;
  }
  return count;
}

Result<bool> SchemaValidator::Matches(const std::string& pattern, const std::string& text) {
  auto matches = programs_.Matches(pattern, text);
  if (matches.ok()) return matches;
  return SchemaError(place_, StrCat("has a 'patternProperties' ", Quoted(pattern), " that ",
                                    matches.status().message()));
}

Result<bool> SchemaValidator::CheckMember(const Json& schema, const std::string& name,
                                          const Json& value) {
  bool is_known = false;
  KVCACHE_RETURN_IF_ERROR(Spend(10 * schema.size()));
  if (schema.contains("properties")) {
    KVCACHE_RETURN_IF_ERROR(Spend(schema["properties"].size()));
  }
  if (schema.contains("properties") && schema["properties"].contains(name)) {
    is_known = true;
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(schema["properties"][name], value));
    if (!allowed) return false;
  }
  if (schema.contains("patternProperties")) {
    for (const auto& [pattern, its] : schema["patternProperties"].items()) {
      KVCACHE_ASSIGN_OR_RETURN(const bool matches, Matches(pattern, name));
      if (!matches) continue;
      is_known = true;
      KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(its, value));
      if (!allowed) return false;
    }
  }
  if (schema.contains("propertyNames")) {
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(schema["propertyNames"], Json(name)));
    if (!allowed) return false;
  }
  if (is_known || !schema.contains("additionalProperties")) return true;
  return Check(schema["additionalProperties"], value);
}

Result<bool> SchemaValidator::CheckObject(const Json& schema, const Json& value) {
  const auto count = static_cast<double>(value.size());
  if (schema.contains("minProperties") && count < schema["minProperties"]) return false;
  if (schema.contains("maxProperties") && count > schema["maxProperties"]) return false;
  const auto has_all = [&](const Json& names) -> Result<bool> {
    KVCACHE_RETURN_IF_ERROR(Spend(names.size() * value.size()));
    return std::all_of(names.begin(), names.end(), [&](const Json& name) {
      return value.contains(name.get_ref<const std::string&>());
    });
  };
  if (schema.contains("required")) {
    KVCACHE_ASSIGN_OR_RETURN(const bool all, has_all(schema["required"]));
    if (!all) return false;
  }
  static const Json kNone = Json::object();
  const auto dependent = [&](const char* keyword) -> const Json& {
    return schema.contains(keyword) ? schema[keyword] : kNone;
  };
  for (const auto& [name, names] : dependent("dependentRequired").items()) {
    KVCACHE_RETURN_IF_ERROR(Spend(value.size()));
    if (!value.contains(name)) continue;
    KVCACHE_ASSIGN_OR_RETURN(const bool all, has_all(names));
    if (!all) return false;
  }
  for (const auto& [name, its] : dependent("dependentSchemas").items()) {
    KVCACHE_RETURN_IF_ERROR(Spend(value.size()));
    if (!value.contains(name)) continue;
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(its, value));
    if (!allowed) return false;
  }
  for (const auto& [name, member] : value.items()) {
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, CheckMember(schema, name, member));
    if (!allowed) return false;
  }
  return true;
}

Result<bool> SchemaValidator::AreDistinct(const Json& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      KVCACHE_ASSIGN_OR_RETURN(const bool same, IsSame(values[i], values[j]));
      if (same) return false;
    }
  }
  return true;
}

Result<bool> SchemaValidator::CheckArray(const Json& schema, const Json& value) {
  const auto count = static_cast<double>(value.size());
  if (schema.contains("minItems") && count < schema["minItems"]) return false;
  if (schema.contains("maxItems") && count > schema["maxItems"]) return false;
  if (schema.value("uniqueItems", Json(false)) == true) {
    KVCACHE_ASSIGN_OR_RETURN(const bool distinct, AreDistinct(value));
    if (!distinct) return false;
  }
  const auto [first, rest] = ItemsOf(schema);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool is_first = first != nullptr && i < first->size();
    if (!is_first && rest == nullptr) continue;
    KVCACHE_ASSIGN_OR_RETURN(const bool allowed, Check(is_first ? (*first)[i] : *rest, value[i]));
    if (!allowed) return false;
  }
  return true;
}

}  // namespace kvcache
