#include "grammar/schema_scalars.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "grammar/decimal_grammar.h"
#include "grammar/text_pattern.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostCount = 10'000;  // of lengths and items
constexpr double kMostNumber = 1e15;         // of bounds

// Patterns whose texts have the format; the last days of months and the like are left out.
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"},
    {"time",
     "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]"
     ")$"},
    {"date-time",
     "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
     "(\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"duration", "^P([0-9]{1,4}D|T[0-9]{1,4}[HMS])$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"email",
     "^[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,20}){0,3}@[A-Za-z0-9]{1,20}(\\.[A-Za-z0-9]{2,20}){"
     "1,3}$"},
    {"hostname", "^[A-Za-z0-9]{1,20}(\\.[A-Za-z0-9]{2,20}){0,4}$"},
    {"ipv4",
     "^(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-"
     "9])){3}$"},
    {"uri", "^https?://[A-Za-z0-9]{1,20}(\\.[A-Za-z0-9]{2,20}){0,4}(/[A-Za-z0-9._~-]{0,40}){0,8}$"},
};

// Reads a bound as a whole number; for integers, one with a fraction is rounded.
Result<std::optional<std::int64_t>> Bound(const Json& schema, const char* inclusive,
                                          const char* exclusive, int step,
                                          const std::string& place) {
  std::optional<std::int64_t> bound;
  for (const char* keyword : {inclusive, exclusive}) {
    if (!schema.contains(keyword)) continue;
    const Json& value = schema[keyword];
    if (!value.is_number())
      return SchemaError(place, StrCat("has ", Quoted(keyword), " that is no number"));
    const double number = value.get<double>();
    if (!(std::abs(number) <= kMostNumber)) {
      return SchemaError(place, StrCat("has ", Quoted(keyword), " of more than 15 digits"));
    }
    const double rounded = step > 0 ? std::ceil(number) : std::floor(number);
    auto whole = static_cast<std::int64_t>(rounded);
    if (keyword == exclusive && rounded == number) whole += step;
    if (!bound || (step > 0 ? whole > *bound : whole < *bound)) bound = whole;
  }
  return bound;
}

// Returns whether a bound of numbers has a fraction.
bool HasFraction(const Json& schema) {
  for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (schema.contains(keyword) && !HasSchemaType(schema[keyword], "integer")) return true;
  }
  return false;
}

// Makes a bound narrower.
Status Narrow(const Json& schema, const char* keyword, const std::string& place,
              DecimalRange& range) {
  if (!schema.contains(keyword)) return Status::Ok();
  const std::optional<Decimal> bound = ReadDecimal(schema[keyword]);
  if (!bound) {
    return SchemaError(place, StrCat("has ", Quoted(keyword),
                                     " of more than 6 digits behind the point, or 12 before it"));
  }
  const double value = schema[keyword].get<double>();
  const bool is_least = std::string_view(keyword).find("inimum") != std::string_view::npos;
  Decimal& own = is_least ? range.least : range.most;
  bool& exclusive = is_least ? range.above_least : range.below_most;
  const double before = static_cast<double>(own.units) / std::pow(10.0, own.places);
  const bool is_exclusive = keyword[0] == 'e';
  if (value == before) {
    exclusive = exclusive || is_exclusive;
  } else if (is_least ? value > before : value < before) {
    own = *bound;
    exclusive = is_exclusive;
  }
  return Status::Ok();
}

// Returns numbers with bounds that have fractions, or multiples.
Result<GrammarSymbol> DecimalNumber(const Json& schema, bool integer, const std::string& place,
                                    GrammarBuilder& builder) {
  DecimalRange range{.places = integer ? 0 : kMostPlaces};
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    KVCACHE_RETURN_IF_ERROR(Narrow(schema, keyword, place, range));
  }
  if (schema.contains("multipleOf")) {
    const std::optional<Decimal> multiple = ReadDecimal(schema["multipleOf"]);
    if (!multiple || multiple->units == 0) {
      return UnsupportedKeyword(place, "multipleOf with more than 6 digits behind the point");
    }
    range.multiple = *multiple;
    range.places = std::min(range.places, multiple->places);
  }
  const auto numbers = Decimals(range, builder);
  if (!numbers) return UnsupportedKeyword(place, "multipleOf with more than 200 remainders");
  return *numbers;
}

}  // namespace

Status SchemaError(const std::string& place, const std::string& problem) {
  return InvalidArgument(StrCat("the schema at ", Quoted(place), " ", problem));
}
Status UnsupportedKeyword(const std::string& place, std::string_view keyword) {
  return SchemaError(place,
                     StrCat("has ", Quoted(keyword), ", which this server does not support"));
}

// Returns whether a value has the type.
bool HasSchemaType(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "number") return value.is_number();
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
}

Result<std::int64_t> SchemaCount(const Json& schema, const char* keyword, std::int64_t fallback,
                                 const std::string& place) {
  if (!schema.contains(keyword)) return fallback;
  const Json& value = schema[keyword];
  const bool whole = HasSchemaType(value, "integer") && value >= 0;
  if (!whole) return SchemaError(place, StrCat("has ", Quoted(keyword), " that is no count"));
  if (value > kMostCount) {
    return SchemaError(place, StrCat("has ", Quoted(keyword), " above 10,000, which is too much"));
  }
  return static_cast<std::int64_t>(value.get<double>());
}

Result<GrammarSequence> SchemaText(const Json& schema, const std::string& place,
                                   GrammarBuilder& builder, JsonGrammar& json) {
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t least, SchemaCount(schema, "minLength", 0, place));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t most, SchemaCount(schema, "maxLength", -1, place));
  if (most >= 0 && most < least)
    return SchemaError(place, "has a 'maxLength' below its 'minLength'");
  std::string pattern;
  std::string given;  // the keyword
  for (const char* keyword : {"pattern", "format"}) {
    if (!schema.contains(keyword)) continue;
    if (!schema[keyword].is_string()) {
      return SchemaError(place, StrCat("has ", Quoted(keyword), " that is no string"));
    }
    if (!pattern.empty()) {
      return SchemaError(
          place, "has 'format' beside 'pattern', which this server does not support together");
    }
    pattern = schema[keyword].get<std::string>();
    given = keyword;
    if (keyword == std::string_view("pattern")) continue;
    const auto* const known = std::find_if(std::begin(kFormats), std::end(kFormats),
                                           [&](const auto& each) { return each.first == pattern; });
    if (known == std::end(kFormats)) return UnsupportedKeyword(place, StrCat("format ", pattern));
    pattern = known->second;
  }
  if (pattern.empty()) return json.Text(least, most);
  auto text = TextPattern(pattern, {least, most}, builder, json);
  if (!text.ok())
    return SchemaError(place, StrCat("has a ", Quoted(given), " that ", text.status().message()));
  return text;
}

Result<GrammarSymbol> SchemaNumber(const Json& schema, bool integer, const std::string& place,
                                   GrammarBuilder& builder, JsonGrammar& json) {
  const bool multiples = schema.contains("multipleOf") && !(integer && schema["multipleOf"] == 1);
  if (multiples || (!integer && HasFraction(schema))) {
    return DecimalNumber(schema, integer, place, builder);
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto least,
                           Bound(schema, "minimum", "exclusiveMinimum", 1, place));
  KVCACHE_ASSIGN_OR_RETURN(const auto most,
                           Bound(schema, "maximum", "exclusiveMaximum", -1, place));
  if (!least && !most) return integer ? json.Integer() : json.Number();
  constexpr auto kFar = static_cast<std::int64_t>(kMostNumber);
  const std::int64_t first = least.value_or(std::min(-kFar, most.value_or(0)));
  const std::int64_t last = most.value_or(std::max(kFar, least.value_or(0)));
  if (integer) return json.IntegersBetween(first, last);
  const bool above = schema.contains("exclusiveMaximum") && last < schema["exclusiveMaximum"];
  const bool below = schema.contains("exclusiveMinimum") && first > schema["exclusiveMinimum"];
  return json.NumbersBetween(first, last, above && !(last == schema.value("maximum", Json())),
                             below && !(first == schema.value("minimum", Json())));
}

}  // namespace kvcache
