#include "grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "grammar/json_grammar.h"
#include "grammar/schema_disjoint.h"
#include "grammar/schema_form.h"
#include "grammar/schema_keywords.h"
#include "grammar/schema_merge.h"
#include "grammar/schema_scalars.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 100;

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
    KVCACHE_RETURN_IF_ERROR(CheckForm(schema, place));
    std::vector<std::string> given;
    for (const auto& [key, value] : schema.items()) {
      if (IsKeywordOf(key, kRefusedKeywords) && !(key == "uniqueItems" && value == false)) {
        return UnsupportedKeyword(place, key);
      }
      if (IsKeywordOf(key, kAssertionKeywords)) given.push_back(key);
    }
    const bool alone = given.size() == 1;
    if (schema.contains("allOf") || (schema.contains("$ref") && !alone)) {
      return AllOf(rule, schema, place, depth);
    }
    if (schema.value("nullable", Json(false)) == true) builder_.Add(rule, builder_.Literal("null"));
    if (schema.contains("$ref")) return Reference(rule, schema, place, depth);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (!schema.contains(keyword)) continue;
      return alone ? Branches(rule, schema, keyword, place, depth)
                   : Distribute(rule, schema, keyword, place, depth);
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

  // Checks each schema once.
  Status CheckForm(const Json& schema, const std::string& place) {
    return checked_.insert(&schema).second ? CheckSchemaForm(schema, place) : Status::Ok();
  }

  // Returns the schema that a '$ref' names.
  Result<const Json*> Target(const Json& reference, const std::string& place) const {
    const std::string to = reference.get<std::string>();
    if (!to.starts_with('#')) {
      return SchemaError(place,
                         "has a '$ref' out of the schema, which this server does not support");
    }
    try {
      const Json::json_pointer pointer(to.substr(1));
      if (root_.contains(pointer)) return &root_.at(pointer);
    } catch (const Json::exception&) {
      return SchemaError(place, StrCat("refers to ", Quoted(to), ", which is no place"));
    }
    return SchemaError(place, StrCat("refers to ", Quoted(to), ", which is not there"));
  }

  Status Reference(GrammarSymbol rule, const Json& schema, const std::string& place, int depth) {
    KVCACHE_ASSIGN_OR_RETURN(const Json* const target, Target(schema["$ref"], place));
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol symbol,
                             Value(*target, schema["$ref"].get<std::string>(), depth));
    if (symbol == rule) return SchemaError(place, "refers to itself");
    builder_.Add(rule, {symbol});
    return Status::Ok();
  }

  // What a schema consists of: its own keywords, the schema that '$ref' names, and those of 'allOf'.
  struct Parts {
    std::vector<Json> list{};
    std::string text{};               // the JSON of all parts
    std::set<const Json*> targets{};  // schemas of '$ref' that are in the list
  };

  Status Split(const Json& schema, const std::string& place, int depth, Parts& parts) {
    if (depth > kMostDepth) return SchemaError(place, "is nested too deep");
    if (schema.is_object()) KVCACHE_RETURN_IF_ERROR(CheckForm(schema, place));
    Json rest = schema.is_object() ? AssertionsOf(schema, {"allOf", "$ref"}) : schema;
    const std::string text = TextOf(rest);
    if (!HasRoomFor(1, text.size())) {
      return SchemaError(place, "has schemas in 'allOf' that are too large");
    }
    parts.text += text + "\n";
    parts.list.push_back(std::move(rest));
    if (!schema.is_object()) return Status::Ok();
    if (schema.contains("$ref")) {
      KVCACHE_ASSIGN_OR_RETURN(const Json* const target, Target(schema["$ref"], place));
      if (parts.targets.insert(target).second) {
        KVCACHE_RETURN_IF_ERROR(Split(*target, place, depth + 1, parts));
      }
    }
    static const Json kNone = Json::array();
    const Json& all = schema.contains("allOf") ? schema["allOf"] : kNone;
    for (std::size_t i = 0; i < all.size(); ++i) {
      KVCACHE_RETURN_IF_ERROR(Split(all[i], StrCat(place, "/allOf/", i), depth + 1, parts));
    }
    return Status::Ok();
  }

  static std::string TextOf(const Json& schema) {
    return schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // Counts the bytes of schemas that are about to be made. Returns whether there are not too many.
  bool HasRoomFor(std::size_t schemas, std::size_t bytes_of_each) {
    made_bytes_ += schemas * (bytes_of_each + kBytesOfOne);
    return made_bytes_ <= kMostMadeBytes;
  }

  // Schemas with the same parts have one rule, so that recursive ones end.
  Status AllOf(GrammarSymbol rule, const Json& schema, const std::string& place, int depth) {
    Parts parts;
    KVCACHE_RETURN_IF_ERROR(Split(schema, place, depth, parts));
    const auto [known, is_new] = merged_.try_emplace(std::move(parts.text), rule);
    if (!is_new) {
      if (known->second == rule) return SchemaError(place, "refers to itself");
      builder_.Add(rule, {known->second});
      return Status::Ok();
    }
    KVCACHE_ASSIGN_OR_RETURN(Json merged, MergeSchemas(parts.list, place));
    return Fill(rule, made_.emplace_back(std::move(merged)), place, depth + 1);
  }

  // Other keywords beside 'anyOf' or 'oneOf' hold for each of its schemas.
  Status Distribute(GrammarSymbol rule, const Json& schema, const char* keyword,
                    const std::string& place, int depth) {
    const Json& given = schema[keyword];
    const Json rest = AssertionsOf(schema, {keyword});
    if (!HasRoomFor(given.size(), TextOf(rest).size()) || !HasRoomFor(1, TextOf(given).size())) {
      return SchemaError(place, "has alternatives that are too large");
    }
    KVCACHE_RETURN_IF_ERROR(CheckApart(given, keyword, place));
    Json branches = Json::array();
    for (const Json& branch : given) {
      branches.push_back({{"allOf", Json::array({rest, branch})}});
    }
    const Json& made = made_.emplace_back(Json{{"anyOf", std::move(branches)}});
    return Branches(rule, made, "anyOf", place, depth);
  }

  Status Branches(GrammarSymbol rule, const Json& schema, const char* keyword,
                  const std::string& place, int depth) {
    const Json& branches = schema[keyword];
    KVCACHE_RETURN_IF_ERROR(CheckApart(branches, keyword, place));
    for (std::size_t i = 0; i < branches.size(); ++i) {
      KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol branch,
                               Value(branches[i], StrCat(place, "/", keyword, "/", i), depth));
      builder_.Add(rule, {branch});
    }
    return Status::Ok();
  }

  // The schemas of 'oneOf' must be known to share no value.
  static Status CheckApart(const Json& branches, std::string_view keyword,
                           const std::string& place) {
    if (keyword != "oneOf" || AreDisjoint(branches)) return Status::Ok();
    return UnsupportedKeyword(
        place, "oneOf with schemas that may allow the same value, or with too many to compare");
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
          one.is_string()
              ? std::find(kSchemaTypes.begin(), kSchemaTypes.end(), one.get<std::string>())
              : kSchemaTypes.end();
      if (found == kSchemaTypes.end()) return SchemaError(place, "has an unknown 'type'");
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
                               SchemaNumber(schema, type == "integer", place, builder_, json_));
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
    std::vector<std::string> required;  // an array of strings, as CheckForm found
    for (const Json& name : schema.value("required", Json::array())) {
      required.push_back(name.get<std::string>());
    }
    const std::set<std::string> needed(required.begin(), required.end());
    struct Member {
      std::string name;
      const Json* schema;
      bool required;
    };
    std::vector<Member> members;
    if (schema.contains("properties")) {
      const Json& properties = schema["properties"];
      if (!properties.is_object()) return SchemaError(place, "has 'properties' that are no object");
      for (const auto& [name, value] : properties.items()) {
        members.push_back({name, &value, needed.contains(name)});
      }
    }
    static const Json any(true);
    const Json& other =
        schema.contains("additionalProperties") ? schema["additionalProperties"] : any;
    std::set<std::string> known;
    for (const Member& member : members) known.insert(member.name);
    for (const std::string& name : required) {
      if (!known.contains(name)) members.push_back({name, &other, true});
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

  static constexpr std::size_t kMostMadeBytes = std::size_t{1} << 20;
  static constexpr std::size_t kBytesOfOne = 200;  // beside its text

  const Json& root_;
  GrammarBuilder& builder_;
  JsonGrammar json_;
  std::deque<Json> made_;  // schemas out of several
  std::size_t made_bytes_ = 0;
  std::map<std::string, GrammarSymbol> merged_;  // rules of 'allOf', by the texts of its parts
  std::map<const Json*, GrammarSymbol> rules_;
  std::set<const Json*> checked_;  // schemas whose keywords have the right form
};

}  // namespace

Result<GrammarSymbol> AddJsonSchema(const nlohmann::ordered_json& schema, GrammarBuilder& builder) {
  return SchemaCompiler(schema, builder).Compile();
}

}  // namespace kvcache
