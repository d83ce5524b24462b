#include "dialect/grammar/argument_grammar.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "dialect/grammar/call_grammar.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/keywords.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns whether a schema says nothing of what an object has.
bool IsOfNoParameters(const Json& schema) {
  return std::all_of(schema.items().begin(), schema.items().end(), [](const auto& item) {
    const SchemaKeyword* const known = FindKeyword(item.key());
    return item.key() == "type" || known == nullptr || known->merge == SchemaMerge::kIgnored;
  });
}

// Returns the schema of the objects that a schema allows: arguments are nothing else, and {} allows any value. A tool
// whose schema says nothing of parameters wants none.
Result<Json> ObjectsOf(const Json& schema) {
  if (schema.is_null()) return Json{{"type", "object"}, {"properties", Json::object()}};
  const Json type = schema.value("type", Json("object"));
  const bool listed =
      type.is_array() && std::find(type.begin(), type.end(), "object") != type.end();
  if (type != "object" && !listed) {
    return InvalidArgument(
        StrCat("its parameters have the 'type' ", type.dump(), "; must be \"object\""));
  }
  Json objects = schema;
  objects["type"] = "object";
  if (IsOfNoParameters(objects)) objects["properties"] = Json::object();
  return objects;
}

bool IsString(const Json& schema) {
  return schema.is_object() && schema.value("type", Json()) == "string";
}

bool IsListedString(const Json& schema) {
  const Json values = schema.is_object() ? schema.value("enum", Json()) : Json();
  return values.is_array() && std::all_of(values.begin(), values.end(),
                                          [](const Json& value) { return value.is_string(); });
}

bool IsCompound(const Json& schema) {
  const Json type = schema.is_object() ? schema.value("type", Json()) : Json();
  return type != "integer" && type != "number" && type != "boolean" && type != "null";
}

// Returns the schema of one property, with the definitions that it may refer to.
Json PropertyOf(const Json& schema, const Json& property) {
  if (!property.is_object()) return property;
  Json own = property;
  for (const char* key : {"$defs", "definitions"}) {
    if (schema.contains(key) && !own.contains(key)) own[key] = schema[key];
  }
  return own;
}

bool IsRequired(const Json& schema, const std::string& name) {
  const Json required = schema.value("required", Json());
  return required.is_array() && std::find(required.begin(), required.end(), name) != required.end();
}

}  // namespace

Result<GrammarSymbol> ArgumentGrammar::Object(const Json& schema) {
  const auto strict = [&](GrammarBuilder& builder) -> Result<GrammarSymbol> {
    KVCACHE_ASSIGN_OR_RETURN(const Json objects, ObjectsOf(schema));
    return AddJsonSchema(objects, builder);
  };
  if (!loose_) return strict(builder_);
  GrammarBuilder apart;
  const auto root = strict(apart);
  if (!root.ok()) return json_.AnyObject();
  const auto form = apart.Finish(*root);
  return form.ok() ? builder_.Copy(*form) : json_.AnyObject();
}

Result<GrammarSequence> ArgumentGrammar::Of(const Json& schema) {
  switch (syntax_.form) {
    case CallForm::kParameters:
      return Pairs(schema, {builder_.AnyOf({{}, builder_.Literal("\n")})});
    case CallForm::kPython: {
      KVCACHE_ASSIGN_OR_RETURN(GrammarSequence pairs, Pairs(schema, {json_.Comma()}));
      return Joined(std::move(pairs), builder_.Literal(")"));
    }
    case CallForm::kBraces: {
      KVCACHE_ASSIGN_OR_RETURN(GrammarSequence pairs, Pairs(schema, {json_.Comma()}));
      return Joined(std::move(pairs), builder_.Literal("}"));
    }
    default: break;
  }
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol object, Object(schema));
  return GrammarSequence{object};
}

// From the last property to the first: what may follow if no value is written yet, and if one is.
Result<GrammarSequence> ArgumentGrammar::Pairs(const Json& schema,
                                               const GrammarSequence& separator) {
  KVCACHE_ASSIGN_OR_RETURN(const Json objects, ObjectsOf(schema));
  const Json properties = objects.value("properties", Json::object());
  if (!properties.is_object()) return InvalidArgument("'properties' must be an object");
  std::vector<std::string> names;
  for (const auto& [name, property] : properties.items()) names.push_back(name);
  GrammarSymbol fresh = builder_.AnyOf({{}});
  GrammarSymbol begun = fresh;
  for (std::size_t i = names.size(); i-- > 0;) {
    auto pair = Pair(names[i], PropertyOf(objects, properties[names[i]]));
    if (!pair.ok()) return pair.status();
    std::vector<GrammarSequence> first = {Joined(*pair, {begun})};
    std::vector<GrammarSequence> next = {Joined(Joined(separator, *pair), {begun})};
    if (!IsRequired(objects, names[i])) {
      first.push_back({fresh});
      next.push_back({begun});
    }
    fresh = builder_.AnyOf(std::move(first));
    begun = builder_.AnyOf(std::move(next));
  }
  return GrammarSequence{fresh};
}

Result<GrammarSequence> ArgumentGrammar::Pair(const std::string& name, const Json& schema) {
  if (syntax_.form == CallForm::kParameters) return Parameter(name, schema);
  KVCACHE_ASSIGN_OR_RETURN(GrammarSequence value, Value(schema));
  const char* const sign = syntax_.form == CallForm::kPython ? "=" : ":";
  return Joined(builder_.Literal(name + sign), value);
}

// The value of a property whose schema cannot be enforced is any value if the rule is loose.
Result<GrammarSequence> ArgumentGrammar::Value(const Json& schema) {
  const bool braces = syntax_.form == CallForm::kBraces;
  if (braces && (IsString(schema) || IsListedString(schema))) return Quoted(schema);
  if (braces && IsCompound(schema)) return GrammarSequence{Braced()};
  GrammarBuilder apart;
  const auto root = AddJsonSchema(schema, apart);
  if (root.ok()) {
    const auto form = apart.Finish(*root);
    if (form.ok()) return GrammarSequence{builder_.Copy(*form)};
    if (!loose_) return form.status();
  }
  if (!loose_) return root.status();
  return GrammarSequence{json_.Any()};
}

Result<GrammarSequence> ArgumentGrammar::Parameter(const std::string& name, const Json& schema) {
  const bool listed = IsListedString(schema);
  const bool text = IsString(schema) || listed;
  GrammarSequence all =
      builder_.Literal(StrCat(syntax_.parameter_begin, name, syntax_.parameter_name_end));
  // A mark whether the value is a string stands in a quotation.
  if (syntax_.parameter_name_end.ends_with('"')) {
    all = Joined(std::move(all), builder_.Literal(text ? "true" : "false"));
  } else if (!syntax_.value_begin.empty()) {
    all.push_back(builder_.AnyOf({{}, builder_.Literal("\n")}));
  }
  const std::string pad = syntax_.padded ? "\n" : "";
  all = Joined(std::move(all), builder_.Literal(syntax_.value_begin + pad));
  const std::string end = pad + syntax_.parameter_end;
  if (text && !listed) {
    all.push_back(TextUpTo(end, {}, false, builder_));
    return all;
  }
  if (listed) {
    std::vector<GrammarSequence> values;
    for (const Json& value : schema["enum"]) {
      values.push_back(builder_.Literal(value.get<std::string>()));
    }
    all.push_back(builder_.AnyOf(std::move(values)));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSequence value, Value(schema));
    all = Joined(std::move(all), value);
  }
  return Joined(std::move(all), builder_.Literal(end));
}

GrammarSequence ArgumentGrammar::Quoted(const Json& schema) {
  const GrammarSequence begin = builder_.Literal(syntax_.quote);
  if (!IsListedString(schema)) return Joined(begin, {TextUpTo(syntax_.quote, {}, false, builder_)});
  std::vector<GrammarSequence> values;
  for (const Json& value : schema["enum"]) {
    values.push_back(builder_.Literal(value.get<std::string>() + syntax_.quote));
  }
  return Joined(begin, {builder_.AnyOf(std::move(values))});
}

// Any value in braces.
GrammarSymbol ArgumentGrammar::Braced() {
  const GrammarSymbol value = builder_.NewRule();
  ByteSet letters;
  for (int c = 0; c < 128; ++c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_') {
      letters.set(static_cast<std::size_t>(c));
    }
  }
  const GrammarSequence key =
      Joined(builder_.Repeat(builder_.Bytes(letters), 1, 64), builder_.Literal(":"));
  const auto listed = [&](const GrammarSequence& item, const char* begin, const char* end) {
    const GrammarSymbol more = builder_.AnyOf({Joined(builder_.Literal(","), item)});
    const GrammarSequence some = Joined(item, builder_.Repeat(more, 0, -1));
    return Joined(Joined(builder_.Literal(begin), {builder_.AnyOf({{}, some})}),
                  builder_.Literal(end));
  };
  builder_.Add(value, Quoted({}));
  builder_.Add(value, {json_.NumberOf({})});
  for (const char* word : {"true", "false", "null"}) builder_.Add(value, builder_.Literal(word));
  builder_.Add(value, listed({value}, "[", "]"));
  builder_.Add(value, listed(Joined(key, {value}), "{", "}"));
  return value;
}

}  // namespace kvcache
