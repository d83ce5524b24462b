#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "grammar/json_grammar.h"
#include "grammar/schema_form.h"
#include "grammar/schema_scalars.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 100;

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                    "string", "object",  "array"};
constexpr std::array<std::string_view, 24> kRefused = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "uniqueItems",
                                                       "contains",
                                                       "minContains",
                                                       "maxContains",
                                                       "patternProperties",
                                                       "propertyNames",
                                                       "dependencies",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "additionalItems",
                                                       "$dynamicRef",
                                                       "$recursiveRef",
                                                       "$anchor",
                                                       "$dynamicAnchor",
                                                       "contentEncoding",
                                                       "contentMediaType",
                                                       "contentSchema",
                                                       "$vocabulary"};
// Those that allow fewer values.
constexpr std::array<std::string_view, 25> kAssertions = {"type",
                                                          "enum",
                                                          "const",
                                                          "anyOf",
                                                          "oneOf",
                                                          "allOf",
                                                          "$ref",
                                                          "properties",
                                                          "required",
                                                          "additionalProperties",
                                                          "items",
                                                          "prefixItems",
                                                          "minItems",
                                                          "maxItems",
                                                          "minLength",
                                                          "maxLength",
                                                          "pattern",
                                                          "format",
                                                          "minimum",
                                                          "maximum",
                                                          "exclusiveMinimum",
                                                          "exclusiveMaximum",
                                                          "multipleOf",
                                                          "minProperties",
                                                          "maxProperties"};

bool IsOneOf(const std::string& name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class SchemaCompiler {
 public:
  SchemaCompiler(const Json& root, GrammarBuilder& builder)
      : root_(root), builder_(builder), json_(builder) {}

  Result<GrammarSymbol> Compile() { return Value(root_, "#", 0); }

 private:
  using Types = std::vector<std::string_view>;

  // A schema that is used again, by itself too, has one rule.
  Result<GrammarSymbol> Value(const Json& schema, const std::string& place, int depth) {
    if (depth > kMostDepth) return SchemaError(place, "is nested too deep");
    if (builder_.too_large()) return SchemaError(place, "makes the grammar too large");
    const auto [known, is_new] = rules_.try_emplace(&schema);
    if (!is_new) return known->second;
    const GrammarSymbol rule = builder_.NewRule();
    known->second = rule;
    KVCACHE_RETURN_IF_ERROR(Fill(rule, schema, place, depth + 1));
    return rule;
  }

  Status Fill(GrammarSymbol rule, const Json& schema, const std::string& place, int depth) {
    if (schema.is_boolean()) {
      if (schema.get<bool>()) builder_.Add(rule, {json_.Any()});
      return Status::Ok();
    }
    if (!schema.is_object()) return SchemaError(place, "must be an object or a boolean");
    KVCACHE_RETURN_IF_ERROR(CheckSchemaForm(schema, place));
    std::vector<std::string> given;
    for (const auto& [key, value] : schema.items()) {
      if (IsOneOf(key, kRefused) && !(key == "uniqueItems" && value == false)) {
        return UnsupportedKeyword(place, key);
      }
      if (IsOneOf(key, kAssertions)) given.push_back(key);
    }
    if (schema.value("nullable", Json(false)) == true) builder_.Add(rule, builder_.Literal("null"));
    const auto alone = [&](const char* keyword) -> Status {
      for (const std::string& other : given) {
        if (other == keyword) continue;
        return SchemaError(place, StrCat("has ", Quoted(other), " beside ", Quoted(keyword),
                                         ", which this server does not support together"));
      }
      return Status::Ok();
    };
    for (const char* keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(keyword)) continue;
      KVCACHE_RETURN_IF_ERROR(alone(keyword));
      if (keyword == std::string_view("$ref")) return Reference(rule, schema, place, depth);
      return Branches(rule, schema, keyword, place, depth);
    }
    KVCACHE_ASSIGN_OR_RETURN(const Types types, TypesOf(schema, place, given));
    if (schema.contains("enum") || schema.contains("const")) {
      return Constants(rule, schema, types, given, place);
    }
    if (given.empty()) {
      builder_.Add(rule, {json_.Any()});
      return Status::Ok();
    }
    for (const std::string_view type : types) {
      KVCACHE_RETURN_IF_ERROR(AddType(rule, type, schema, place, depth));
    }
    return Status::Ok();
  }

  Status Reference(GrammarSymbol rule, const Json& schema, const std::string& place, int depth) {
    const Json& reference = schema["$ref"];
    if (!reference.is_string()) return SchemaError(place, "has a '$ref' that is no string");
    const std::string to = reference.get<std::string>();
    if (!to.starts_with('#')) {
      return SchemaError(place,
                         "has a '$ref' out of the schema, which this server does not support");
    }
    const Json* target = nullptr;
    try {
      const Json::json_pointer pointer(to.substr(1));
      if (root_.contains(pointer)) target = &root_.at(pointer);
    } catch (const Json::exception&) {
      target = nullptr;
    }
    if (target == nullptr)
      return SchemaError(place, StrCat("refers to ", Quoted(to), ", which is not there"));
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol symbol, Value(*target, to, depth));
    if (symbol == rule) return SchemaError(place, "refers to itself");
    builder_.Add(rule, {symbol});
    return Status::Ok();
  }

  Status Branches(GrammarSymbol rule, const Json& schema, const char* keyword,
                  const std::string& place, int depth) {
    const Json& branches = schema[keyword];
    if (!branches.is_array() || branches.empty()) {
      return SchemaError(place, StrCat("has ", Quoted(keyword), " that is no array of schemas"));
    }
    const std::string_view name(keyword);
    if (name == "allOf" && branches.size() > 1)
      return UnsupportedKeyword(place, "allOf with several schemas");
    if (name == "oneOf" && !AreDisjoint(branches)) {
      return UnsupportedKeyword(place, "oneOf with schemas that may allow the same value");
    }
    for (std::size_t i = 0; i < branches.size(); ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol branch,
                               Value(branches[i], StrCat(place, "/", keyword, "/", i), depth));
      builder_.Add(rule, {branch});
    }
    return Status::Ok();
  }

  // Returns the constants or, for objects, those of a required property; none if they are not known.
  static std::optional<Json> ConstantsOf(const Json& schema) {
    if (!schema.is_object()) return {};
    if (schema.contains("const")) return Json::array({schema["const"]});
    if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
    return {};
  }
  static bool ShareNone(const std::optional<Json>& a, const std::optional<Json>& b) {
    if (!a || !b) return false;
    return std::none_of(a->begin(), a->end(), [&](const Json& value) {
      return std::find(b->begin(), b->end(), value) != b->end();
    });
  }
  static bool Requires(const Json& schema, const std::string& key) {
    const Json required = schema.value("required", Json::array());
    return required.is_array() &&
           std::find(required.begin(), required.end(), key) != required.end();
  }
  static bool AreDisjoint(const Json& a, const Json& b) {
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
  static bool AreDisjoint(const Json& branches) {
    for (std::size_t i = 0; i < branches.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (!AreDisjoint(branches[i], branches[j])) return false;
      }
    }
    return true;
  }

  // Without "type" the keywords tell which values are meant: others are not generated.
  static Result<Types> TypesOf(const Json& schema, const std::string& place,
                               const std::vector<std::string>& given) {
    Types types;
    if (!schema.contains("type")) {
      const auto any = [&](std::initializer_list<const char*> names) {
        return std::any_of(names.begin(), names.end(), [&](const char* name) {
          return std::find(given.begin(), given.end(), name) != given.end();
        });
      };
      if (any({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}))
        types.push_back("object");
      if (any({"items", "prefixItems", "minItems", "maxItems"})) types.push_back("array");
      if (any({"minLength", "maxLength", "pattern", "format"})) types.push_back("string");
      if (any({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}))
        types.push_back("number");
      return types;
    }
    const Json& type = schema["type"];
    const Json list = type.is_array() ? type : Json::array({type});
    if (list.empty()) return SchemaError(place, "has an empty 'type'");
    for (const Json& one : list) {
      const auto* const found =
          one.is_string() ? std::find(kTypes.begin(), kTypes.end(), one.get<std::string>())
                          : kTypes.end();
      if (found == kTypes.end()) return SchemaError(place, "has an unknown 'type'");
      types.push_back(*found);
    }
    return types;
  }

  Status Constants(GrammarSymbol rule, const Json& schema, const Types& types,
                   const std::vector<std::string>& given, const std::string& place) {
    for (const std::string& other : given) {
      if (other == "enum" || other == "const" || other == "type") continue;
      return SchemaError(place, StrCat("has ", Quoted(other),
                                       " beside constants, which this server does not "
                                       "support together"));
    }
    if (schema.contains("enum") && (!schema["enum"].is_array() || schema["enum"].empty())) {
      return SchemaError(place, "has an 'enum' that is no array of values");
    }
    const Json values = schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]});
    for (const Json& value : values) {
      const bool fits = !schema.contains("type") ||
                        std::any_of(types.begin(), types.end(), [&](std::string_view type) {
                          return HasSchemaType(value, type);
                        });
      const bool is_constant = !schema.contains("const") || value == schema["const"];
      if (!fits || !is_constant) continue;
      builder_.Add(rule,
                   builder_.Literal(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    return Status::Ok();
  }

  Status AddType(GrammarSymbol rule, std::string_view type, const Json& schema,
                 const std::string& place, int depth) {
    if (type == "null") {
      builder_.Add(rule, builder_.Literal("null"));
    } else if (type == "boolean") {
      builder_.Add(rule, builder_.Literal("true"));
      builder_.Add(rule, builder_.Literal("false"));
    } else if (type == "string") {
      KVCACHE_ASSIGN_OR_RETURN(GrammarSequence text, SchemaText(schema, place, builder_, json_));
      builder_.Add(rule, std::move(text));
    } else if (type == "object") {
      return Object(rule, schema, place, depth);
    } else if (type == "array") {
      return Array(rule, schema, place, depth);
    } else {
      KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol number,
                               SchemaNumber(schema, type == "integer", place, json_));
      builder_.Add(rule, {number});
    }
    return Status::Ok();
  }

  // One rule for what may follow before any member and one after some, for each property.
  Status Object(GrammarSymbol rule, const Json& schema, const std::string& place, int depth) {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t least,
                             SchemaCount(schema, "minProperties", 0, place));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t most,
                             SchemaCount(schema, "maxProperties", -1, place));
    const Json more = schema.value("additionalProperties", Json(true));
    if (!more.is_boolean() && !more.is_object()) {
      return SchemaError(place, "has 'additionalProperties' that is no schema");
    }
    std::vector<std::string> required;
    for (const Json& name : schema.value("required", Json::array())) {
      if (!name.is_string())
        return SchemaError(place, "has a 'required' that is no array of strings");
      required.push_back(name.get<std::string>());
    }
    if (schema.contains("required") && !schema["required"].is_array()) {
      return SchemaError(place, "has a 'required' that is no array of strings");
    }
    struct Member {
      std::string name;
      const Json* schema;
      bool required;
    };
    std::vector<Member> members;
    const auto is_required = [&](const std::string& name) {
      return std::find(required.begin(), required.end(), name) != required.end();
    };
    if (schema.contains("properties")) {
      const Json& properties = schema["properties"];
      if (!properties.is_object()) return SchemaError(place, "has 'properties' that are no object");
      for (const auto& [name, value] : properties.items()) {
        members.push_back({name, &value, is_required(name)});
      }
    }
    static const Json any(true);
    const Json& other =
        schema.contains("additionalProperties") ? schema["additionalProperties"] : any;
    for (const std::string& name : required) {
      const bool known = std::any_of(members.begin(), members.end(),
                                     [&](const Member& member) { return member.name == name; });
      if (!known) members.push_back({name, &other, true});
    }
    if (members.empty()) {
      KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol value,
                               Value(other, place + "/additionalProperties", depth));
      if (least > 1) return UnsupportedKeyword(place, "minProperties above 1");
      builder_.Add(rule, {json_.Map(value, least, most)});
      return Status::Ok();
    }
    const auto always = std::count_if(members.begin(), members.end(),
                                      [](const Member& member) { return member.required; });
    if (least > always) return UnsupportedKeyword(place, "minProperties");
    if (most >= 0 && most < std::ssize(members)) return UnsupportedKeyword(place, "maxProperties");
    GrammarSymbol after_none = builder_.AnyOf({{}});
    GrammarSymbol after_some = after_none;
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      KVCACHE_ASSIGN_OR_RETURN(
          const GrammarSymbol value,
          Value(*member->schema, StrCat(place, "/properties/", member->name), depth));
      const std::string key =
          Json(member->name).dump(-1, ' ', false, Json::error_handler_t::replace);
      GrammarSequence pair = Joined(builder_.Literal(key), {json_.Colon(), value, after_some});
      const GrammarSymbol none = builder_.AnyOf({pair});
      const GrammarSymbol some = builder_.AnyOf({Joined({json_.Comma()}, pair)});
      if (!member->required) {
        builder_.Add(none, {after_none});
        builder_.Add(some, {after_some});
      }
      after_none = none;
      after_some = some;
    }
    builder_.Add(rule, Joined(Joined(builder_.Literal("{"), {after_none}), builder_.Literal("}")));
    return Status::Ok();
  }

  Status Array(GrammarSymbol rule, const Json& schema, const std::string& place, int depth) {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t least, SchemaCount(schema, "minItems", 0, place));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t most, SchemaCount(schema, "maxItems", -1, place));
    std::vector<GrammarSymbol> first;
    if (schema.contains("prefixItems")) {
      const Json& prefix = schema["prefixItems"];
      if (!prefix.is_array()) return SchemaError(place, "has 'prefixItems' that are no array");
      for (std::size_t i = 0; i < prefix.size(); ++i) {
        KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol item,
                                 Value(prefix[i], StrCat(place, "/prefixItems/", i), depth));
        first.push_back(item);
      }
    }
    if (schema.contains("items") && schema["items"].is_array()) {
      return UnsupportedKeyword(place, "an array of 'items'");
    }
    static const Json any(true);
    const Json& items = schema.contains("items") ? schema["items"] : any;
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol item, Value(items, place + "/items", depth));

    // From the last place on: what may follow before any item, and after some.
    const std::int64_t prefix = std::ssize(first);
    std::int64_t count = std::max(prefix, least);
    GrammarSymbol after_some;
    if (most >= 0) {
      count = std::max<std::int64_t>(count, most);
      after_some = builder_.AnyOf({{}});
    } else {
      const GrammarSymbol next = builder_.AnyOf({{json_.Comma(), item}});
      after_some = builder_.AnyOf({builder_.Repeat(next, 0, -1)});
    }
    GrammarSymbol after_none = after_some;
    if (count == 0 && most < 0) {
      after_none = builder_.AnyOf({{}, {item, after_some}});
    }
    for (std::int64_t i = count; i-- > 0;) {
      if (builder_.too_large()) return SchemaError(place, "makes the grammar too large");
      const GrammarSymbol own = i < prefix ? first[static_cast<std::size_t>(i)] : item;
      const GrammarSymbol none = builder_.NewRule();
      const GrammarSymbol some = builder_.NewRule();
      if (most < 0 || i < most) {
        builder_.Add(none, {own, after_some});
        builder_.Add(some, {json_.Comma(), own, after_some});
      }
      if (i >= least) {
        builder_.Add(none, {});
        builder_.Add(some, {});
      }
      after_none = none;
      after_some = some;
    }
    builder_.Add(rule, Joined(Joined(builder_.Literal("["), {after_none}), builder_.Literal("]")));
    return Status::Ok();
  }

  const Json& root_;
  GrammarBuilder& builder_;
  JsonGrammar json_;
  std::map<const Json*, GrammarSymbol> rules_;
};

}  // namespace

Result<GrammarSymbol> AddJsonSchema(const nlohmann::ordered_json& schema, GrammarBuilder& builder) {
  return SchemaCompiler(schema, builder).Compile();
}

}  // namespace kvcache
