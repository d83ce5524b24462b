#include "grammar/schema/compiler.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "grammar/schema/disjoint.h"
#include "grammar/schema/form.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/negation.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 100;
constexpr std::size_t kMaxParts = 300'000;
constexpr std::size_t kKeywordsOfPart = 8;       // that take as long as one part
constexpr std::size_t kPartsOfPart = 64;         // where they are only compared
constexpr std::size_t kMaxCompared = 4'000'000;  // constants with constants
constexpr std::size_t kCostOfLanguage = 20;
constexpr std::size_t kMaxOverlapping = 8;  // schemas of 'oneOf'

bool IsBeside(const SchemaKeyword& keyword) {
  return keyword.name == "$ref" || keyword.name == "allOf" || keyword.name == "nullable";
}

// Returns whether a schema refuses anything by itself.
bool HasAssertions(const Json& schema) {
  return std::any_of(schema.items().begin(), schema.items().end(), [](const auto& item) {
    const SchemaKeyword* const known = FindKeyword(item.key());
    return known != nullptr && known->merge != SchemaMerge::kIgnored && !IsBeside(*known);
  });
}

// Adds a schema once. Returns false if it is there with alternatives that were chosen: they may lead to themselves.
bool AddPart(const Json& schema, SchemaParts& parts) {
  const auto known = std::find_if(parts.begin(), parts.end(),
                                  [&](const SchemaPart& part) { return part.schema == &schema; });
  if (known != parts.end()) return known->chosen == 0;
  parts.push_back({&schema});
  return true;
}

}  // namespace

Result<GrammarSymbol> SchemaCompiler::Value(const Schemas& schemas, const std::string& place,
                                            int depth) {
  Flat flat;
  const Where where{place, depth};
  for (const Json* const schema : schemas) {
    std::set<const Json*> chain;
    KVCACHE_RETURN_IF_ERROR(Flatten(*schema, where, chain, flat));
  }
  return ValueOf(std::move(flat), where);
}

Result<GrammarSymbol> SchemaCompiler::ValueOf(Flat flat, const Where& where) {
  if (where.depth > kMaxSchemaDepth) return SchemaError(where.place, "is nested too deep");
  const bool asserts =
      std::any_of(flat.parts.begin(), flat.parts.end(),
                  [](const SchemaPart& part) { return HasAssertions(*part.schema); });
  if (flat.loops && !asserts) return SchemaError(where.place, "refers to itself");
  if (flat.impossible) return builder_.NewRule();
  SchemaParts sorted = flat.parts;
  std::sort(sorted.begin(), sorted.end());
  parts_ += 1 + sorted.size();
  if (parts_ > kMaxParts || builder_.too_large()) {
    return SchemaError(where.place, "makes the grammar too large");
  }
  const auto [known, is_new] = rules_.try_emplace(std::move(sorted));
  if (!is_new) return known->second;
  const GrammarSymbol rule = known->second = builder_.NewRule();
  KVCACHE_RETURN_IF_ERROR(Fill(rule, flat.parts, where));
  return rule;
}

Status SchemaCompiler::CheckSchema(const Json& schema, const std::string& place) {
  if (!schema.is_object()) return SchemaError(place, "must be an object or a boolean");
  return checked_.insert(&schema).second ? CheckSchemaForm(schema, place) : Status::Ok();
}

Status SchemaCompiler::Flatten(const Json& schema, const Where& where, std::set<const Json*>& chain,
                               Flat& flat) {
  if (where.depth > kMaxSchemaDepth) return SchemaError(where.place, "is nested too deep");
  parts_ += 1 + schema.size() / kKeywordsOfPart + flat.parts.size() / kPartsOfPart;
  if (parts_ > kMaxParts) return SchemaError(where.place, "makes the grammar too large");
  if (schema.is_boolean()) {
    flat.impossible = flat.impossible || !schema.get<bool>();
    return Status::Ok();
  }
  KVCACHE_RETURN_IF_ERROR(CheckSchema(schema, where.place));
  // Beside `null` its own keywords do not hold, nor those that it names.
  const bool nullable = schema.value("nullable", Json(false)) == true;
  if ((nullable || HasAssertions(schema)) && !AddPart(schema, flat.parts)) {
    return SchemaError(where.place, "has alternatives that lead back to themselves");
  }
  return nullable ? Status::Ok() : Expand(schema, where, chain, flat);
}

Status SchemaCompiler::Expand(const Json& schema, const Where& where, std::set<const Json*>& chain,
                              Flat& flat) {
  const Where inner{where.place, where.depth + 1};
  if (schema.contains("$ref")) {
    KVCACHE_ASSIGN_OR_RETURN(
        const Json* const target,
        references_.Target(schema["$ref"].get_ref<const std::string&>(), where.place));
    if (!chain.insert(target).second) {
      flat.loops = true;
    } else {
      KVCACHE_RETURN_IF_ERROR(Flatten(*target, inner, chain, flat));
      chain.erase(target);
    }
  }
  static const Json kNone = Json::array();
  for (const Json& one : schema.contains("allOf") ? schema["allOf"] : kNone) {
    KVCACHE_RETURN_IF_ERROR(Flatten(one, inner, chain, flat));
  }
  if (!schema.contains("not")) return Status::Ok();
  // What is not enforced as it is, is said in other keywords.
  if (IsSimpleNot(schema["not"])) {
    const Json type = schema.value("type", Json());
    const bool is_number = schema["not"].contains("type") && type == "number";
    if (schema["not"].contains("enum") || is_number ||
        (type == "string" && !schema["not"].contains("type"))) {
      return Status::Ok();
    }
  }
  KVCACHE_ASSIGN_OR_RETURN(const Json* const opposite, Opposite(schema["not"], "not", where.place));
  return Flatten(*opposite, inner, chain, flat);
}

Result<const Json*> SchemaCompiler::Opposite(const Json& schema, const char* keyword,
                                             const std::string& place) {
  const Json*& known = opposites_[&schema];
  if (known != nullptr) return known;
  auto opposite = OppositeOf(schema);
  if (!opposite) {
    return SchemaError(place, StrCat("has ", Quoted(keyword),
                                     " with a schema whose opposite this server cannot enforce"));
  }
  KVCACHE_ASSIGN_OR_RETURN(known, references_.Keep(*std::move(opposite), place));
  return known;
}

Status SchemaCompiler::Fill(GrammarSymbol rule, const SchemaParts& parts, const Where& where) {
  const Where inner{where.place, where.depth + 1};
  for (const char* keyword : {"const", "enum"}) {
    const auto constants = EachOf(parts, keyword);
    if (constants.empty()) continue;
    return Constants(rule, parts, *constants[0], keyword, where.place);
  }
  KVCACHE_ASSIGN_OR_RETURN(const bool chosen, Choose(rule, parts, inner));
  if (chosen) return Status::Ok();
  if (parts.empty()) {
    builder_.Add(rule, {json_.Any()});
    return Status::Ok();
  }
  Types types = TypesOf(parts);
  std::vector<bool> booleans = {false, true};
  KVCACHE_RETURN_IF_ERROR(Exclude(parts, where.place, types, booleans));
  KVCACHE_RETURN_IF_ERROR(CheckEnforced(parts, types, where.place));
  if (types.null) builder_.Add(rule, builder_.Literal("null"));
  for (const bool value : types.boolean ? booleans : std::vector<bool>()) {
    builder_.Add(rule, builder_.Literal(value ? "true" : "false"));
  }
  if (types.string) KVCACHE_RETURN_IF_ERROR(AddText(rule, parts, where.place));
  if (types.number) KVCACHE_RETURN_IF_ERROR(AddNumbers(rule, parts, types.whole, where.place));
  if (types.object) {
    KVCACHE_RETURN_IF_ERROR(AddSchemaObject(rule, parts, where.place, inner.depth, *this));
  }
  if (!types.array) return Status::Ok();
  return AddSchemaArray(rule, parts, where.place, inner.depth, *this);
}

Result<bool> SchemaCompiler::Choose(GrammarSymbol rule, const SchemaParts& parts,
                                    const Where& where) {
  using P = SchemaPart;
  for (std::size_t at = 0; at < parts.size(); ++at) {
    const Json& schema = *parts[at].schema;
    const auto is_open = [&](const char* keyword, std::uint8_t choice) {
      return schema.contains(keyword) && (parts[at].chosen & choice) == 0;
    };
    if (is_open("nullable", P::kNullable) && schema["nullable"] == true) {
      KVCACHE_RETURN_IF_ERROR(ChooseNull(rule, parts, at, where));
    } else if (is_open("anyOf", P::kAnyOf)) {
      for (std::size_t i = 0; i < schema["anyOf"].size(); ++i) {
        const std::string place = StrCat(where.place, "/anyOf/", i);
        KVCACHE_RETURN_IF_ERROR(
            Branch(rule, parts, at, P::kAnyOf, {&schema["anyOf"][i]}, {place, where.depth}));
      }
    } else if (is_open("oneOf", P::kOneOf)) {
      KVCACHE_RETURN_IF_ERROR(ChooseOne(rule, parts, at, where));
    } else if (is_open("if", P::kIf) && (schema.contains("then") || schema.contains("else"))) {
      KVCACHE_RETURN_IF_ERROR(ChooseIf(rule, parts, at, where));
    } else if (is_open("dependentRequired", P::kDependent) ||
               is_open("dependentSchemas", P::kDependent)) {
      KVCACHE_RETURN_IF_ERROR(ChooseDependent(rule, parts, at, where));
    } else {
      continue;
    }
    return true;
  }
  return false;
}

Status SchemaCompiler::Branch(GrammarSymbol rule, SchemaParts parts, std::size_t at,
                              std::uint8_t choice, const Schemas& more, const Where& where) {
  parts[at].chosen = static_cast<std::uint8_t>(parts[at].chosen | choice);
  Flat flat{.parts = std::move(parts)};
  for (const Json* const schema : more) {
    std::set<const Json*> chain;
    KVCACHE_RETURN_IF_ERROR(Flatten(*schema, where, chain, flat));
  }
  flat.loops = false;
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol branch, ValueOf(std::move(flat), where));
  builder_.Add(rule, {branch});
  return Status::Ok();
}

Status SchemaCompiler::ChooseNull(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                                  const Where& where) {
  static const Json kNull = {{"type", "null"}};
  SchemaParts others = parts;
  others[at] = {&kNull};
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol null, ValueOf({.parts = others}, where));
  builder_.Add(rule, {null});
  // The rest of the part is expanded now.
  Flat flat{.parts = parts};
  flat.parts[at].chosen = static_cast<std::uint8_t>(parts[at].chosen | SchemaPart::kNullable);
  std::set<const Json*> chain;
  KVCACHE_RETURN_IF_ERROR(Expand(*parts[at].schema, where, chain, flat));
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol value, ValueOf(std::move(flat), where));
  builder_.Add(rule, {value});
  return Status::Ok();
}

// Exactly one of the schemas holds. If they may share values, the others' opposites hold beside each.
Status SchemaCompiler::ChooseOne(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                                 const Where& where) {
  const Json& given = (*parts[at].schema)["oneOf"];
  Schemas schemas;
  for (const Json& one : given) {
    KVCACHE_ASSIGN_OR_RETURN(const Json* const target, Resolved(one, where.place));
    if (target->is_object()) KVCACHE_RETURN_IF_ERROR(CheckSchema(*target, where.place));
    schemas.push_back(target);
  }
  const bool apart = schemas.size() == 1 || AreDisjoint(schemas);
  if (!apart && schemas.size() > kMaxOverlapping) {
    return UnsupportedKeyword(
        where.place,
        "oneOf with schemas that may allow the same value, or with too many to compare");
  }
  for (std::size_t i = 0; i < schemas.size(); ++i) {
    Schemas more = {&given[i]};
    for (std::size_t j = 0; !apart && j < schemas.size(); ++j) {
      if (i == j) continue;
      auto opposite = Opposite(*schemas[j], "oneOf", where.place);
      if (!opposite.ok()) {
        return UnsupportedKeyword(where.place, "oneOf with schemas that may allow the same value");
      }
      more.push_back(*opposite);
    }
    const std::string place = StrCat(where.place, "/oneOf/", i);
    KVCACHE_RETURN_IF_ERROR(
        Branch(rule, parts, at, SchemaPart::kOneOf, more, {place, where.depth}));
  }
  return Status::Ok();
}

Result<const Json*> SchemaCompiler::Resolved(const Json& schema, const std::string& place) const {
  const Json* target = &schema;
  for (int i = 0; i < kMaxSchemaDepth && target->is_object() && target->contains("$ref"); ++i) {
    const bool alone =
        std::all_of(target->items().begin(), target->items().end(), [](const auto& item) {
          const SchemaKeyword* const known = FindKeyword(item.key());
          return item.key() == "$ref" || known == nullptr || known->merge == SchemaMerge::kIgnored;
        });
    const Json& reference = (*target)["$ref"];
    if (!alone || !reference.is_string()) break;
    KVCACHE_ASSIGN_OR_RETURN(target,
                             references_.Target(reference.get_ref<const std::string&>(), place));
  }
  return target;
}

Status SchemaCompiler::ChooseIf(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                                const Where& where) {
  const Json& schema = *parts[at].schema;
  static const Json kAny(true);
  const Json& then = schema.contains("then") ? schema["then"] : kAny;
  const Json& otherwise = schema.contains("else") ? schema["else"] : kAny;
  if (then == true && otherwise == true) {
    return Branch(rule, parts, at, SchemaPart::kIf, {}, where);
  }
  KVCACHE_ASSIGN_OR_RETURN(const Json* const opposite, Opposite(schema["if"], "if", where.place));
  KVCACHE_RETURN_IF_ERROR(Branch(rule, parts, at, SchemaPart::kIf, {&schema["if"], &then}, where));
  return Branch(rule, parts, at, SchemaPart::kIf, {opposite, &otherwise}, where);
}

// A property is not there, or what depends on it holds.
Status SchemaCompiler::ChooseDependent(GrammarSymbol rule, const SchemaParts& parts, std::size_t at,
                                       const Where& where) {
  const Json& schema = *parts[at].schema;
  const Json*& made = dependents_[&schema];
  if (made != nullptr) return Branch(rule, parts, at, SchemaPart::kDependent, {made}, where);
  Json all = Json::array();
  const auto add = [&](const std::string& name, Json then) {
    const Json without = {{"properties", Json{{name, false}}}};
    all.push_back({{"anyOf", Json::array({without, std::move(then)})}});
  };
  static const Json kNone = Json::object();
  const auto of = [&](const char* keyword) -> const Json& {
    return schema.contains(keyword) ? schema[keyword] : kNone;
  };
  for (const auto& [name, names] : of("dependentRequired").items()) {
    add(name, {{"required", names}});
  }
  for (const auto& [name, its] : of("dependentSchemas").items()) add(name, its);
  if (all.empty()) return Branch(rule, parts, at, SchemaPart::kDependent, {}, where);
  KVCACHE_ASSIGN_OR_RETURN(made, references_.Keep(Json{{"allOf", std::move(all)}}, where.place));
  return Branch(rule, parts, at, SchemaPart::kDependent, {made}, where);
}

SchemaCompiler::Types SchemaCompiler::TypesOf(const SchemaParts& parts) {
  Types types;
  for (const Json* const type : EachOf(parts, "type")) {
    const Json list = type->is_array() ? *type : Json::array({*type});
    const auto has = [&](const char* name) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    types.null = types.null && has("null");
    types.boolean = types.boolean && has("boolean");
    types.string = types.string && has("string");
    types.object = types.object && has("object");
    types.array = types.array && has("array");
    types.whole = types.whole || (has("integer") && !has("number"));
    types.number = types.number && (has("integer") || has("number"));
  }
  return types;
}

Status SchemaCompiler::Exclude(const SchemaParts& parts, const std::string& place, Types& types,
                               std::vector<bool>& booleans) {
  for (const Json* const refused : SimpleNotsOf(parts)) {
    for (const Json& value : refused->value("enum", Json::array())) {
      if (value.is_null()) types.null = false;
      if (value.is_boolean()) std::erase(booleans, value.get<bool>());
      const bool matters = (value.is_object() && types.object) || (value.is_array() && types.array);
      if (matters) {
        return SchemaError(place,
                           "refuses an object or an array by 'not', which this server "
                           "cannot enforce");
      }
    }
  }
  return Status::Ok();
}

Status SchemaCompiler::CheckEnforced(const SchemaParts& parts, const Types& types,
                                     const std::string& place) {
  for (const SchemaPart& part : parts) {
    for (const auto& [key, value] : part.schema->items()) {
      const SchemaKeyword* const known = FindKeyword(key);
      if (known == nullptr || known->merge != SchemaMerge::kRefused) continue;
      const bool matters = known->type == SchemaType::kAny ||
                           (known->type == SchemaType::kObject && types.object) ||
                           (known->type == SchemaType::kArray && types.array);
      if (matters) return UnsupportedKeyword(place, key);
    }
  }
  return Status::Ok();
}

Status SchemaCompiler::Constants(GrammarSymbol rule, const SchemaParts& parts, const Json& given,
                                 std::string_view keyword, const std::string& place) {
  const bool is_list = keyword == "enum";
  const Json one = is_list ? Json() : Json::array({given});
  const Json& values = is_list ? given : one;
  std::size_t others = 0;
  for (const Json* const list : EachOf(parts, "enum")) others += list->size();
  const std::size_t own = std::min(others, values.size());  // not compared with itself
  if (values.size() * (others - own) > kMaxCompared) {
    return SchemaError(place, "has constants that are too many to compare");
  }
  for (const Json& value : values) {
    bool allowed = true;
    for (std::size_t i = 0; allowed && i < parts.size(); ++i) {
      KVCACHE_ASSIGN_OR_RETURN(allowed, validator_.Allows(*parts[i].schema, value, place, &given));
    }
    if (allowed) builder_.Add(rule, Constant(value));
    if (builder_.too_large()) return SchemaError(place, "makes the grammar too large");
  }
  return Status::Ok();
}

GrammarSequence SchemaCompiler::Constant(const Json& value) {
  if (builder_.too_large()) return {};
  const auto text = [](const Json& one) {
    return one.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (value.is_string()) return json_.Constant(value.get_ref<const std::string&>());
  if (value.is_number() && HasSchemaType(value, "integer")) {
    std::string whole = text(value);
    if (whole.ends_with(".0")) whole.resize(whole.size() - 2);
    if (whole.find('e') != whole.npos) return builder_.Literal(whole);
    const GrammarSymbol with_point = builder_.AnyOf({builder_.Literal(whole + ".0")});
    builder_.MarkUnwanted(with_point);
    return {builder_.AnyOf({builder_.Literal(whole), {with_point}})};
  }
  if (!value.is_structured()) return builder_.Literal(text(value));
  GrammarSequence all = builder_.Literal(value.is_array() ? "[" : "{");
  bool first = true;
  for (const auto& [name, inner] : value.items()) {
    if (!std::exchange(first, false)) all.push_back(json_.Comma());
    if (value.is_object())
      all = Joined(Joined(std::move(all), json_.Constant(name)), {json_.Colon()});
    all = Joined(std::move(all), Constant(inner));
  }
  return Joined(std::move(all), builder_.Literal(value.is_array() ? "]" : "}"));
}

Status SchemaCompiler::AddText(GrammarSymbol rule, const SchemaParts& parts,
                               const std::string& place) {
  KVCACHE_ASSIGN_OR_RETURN(auto texts, TextsOf(parts, place, programs_));
  const TextLengths lengths = texts->lengths();
  if (texts->parts().empty() && lengths.min == 0 && lengths.max < 0) {
    builder_.Add(rule, {json_.AnyText()});
    return Status::Ok();
  }
  std::size_t cost = kCostOfLanguage;
  for (const TextLanguage::Part& part : texts->parts()) cost += part.program->nodes.size();
  builder_.Add(rule, json_.TextOf(std::move(texts), cost));
  return Status::Ok();
}

// JSON Schema takes 5.0 and 1e3 for whole numbers, and many programs do not. A model that writes "7." could end only with
// an exponent. So digits alone are preferred.
void SchemaCompiler::AddNumber(GrammarSymbol rule, NumberRange range) {
  const GrammarSymbol number = json_.NumberOf(range);
  if (!range.unit || range.unit->places > 0) return builder_.Add(rule, {number});
  range.digits_only = true;
  builder_.Add(rule, {json_.NumberOf(range)});
  const GrammarSymbol any = builder_.AnyOf({{number}});
  builder_.MarkUnwanted(any);
  builder_.Add(rule, {any});
}

// Numbers that 'not' refuses lie between the ranges of the others.
Status SchemaCompiler::AddNumbers(GrammarSymbol rule, const SchemaParts& parts, bool whole,
                                  const std::string& place) {
  const auto refused_types = SimpleNotsOf(parts);
  const bool no_whole = std::any_of(refused_types.begin(), refused_types.end(),
                                    [](const Json* refused) { return refused->contains("type"); });
  if (whole && no_whole) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const NumberRange range, NumbersOf(parts, whole, place));
  std::vector<Decimal> refused;
  for (const Json* const constants : SimpleNotsOf(parts)) {
    for (const Json& value : constants->value("enum", Json::array())) {
      if (value.is_number()) refused.push_back(DecimalOf(value));
    }
  }
  std::sort(refused.begin(), refused.end(),
            [](const Decimal& a, const Decimal& b) { return Compare(a, b) < 0; });
  NumberRange left = range;
  for (std::size_t i = 0; i <= refused.size(); ++i) {
    NumberRange between = left;
    if (i < refused.size()) {
      between.AtMost({refused[i], true});
      left.AtLeast({refused[i], true});
    }
    AddNumber(rule, between);
  }
  return Status::Ok();
}

}  // namespace kvcache
