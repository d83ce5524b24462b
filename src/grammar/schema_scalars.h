// The keywords of texts and numbers in a JSON schema, and the errors of schemas.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "grammar/json_grammar.h"

namespace kvcache {

// Return kInvalidArgument with the place in the schema, such as "#/properties/a".
Status SchemaError(const std::string& place, const std::string& problem);
Status UnsupportedKeyword(const std::string& place, std::string_view keyword);

// Returns whether a value has a type of JSON schema.
bool HasSchemaType(const nlohmann::ordered_json& value, std::string_view type);

// Returns the count that a keyword gives; `fallback` without it. Errors: kInvalidArgument: no count up to 10,000.
Result<std::int64_t> SchemaCount(const nlohmann::ordered_json& schema, const char* keyword,
                                 std::int64_t fallback, const std::string& place);

// Return the texts or numbers that a schema allows. Errors: kInvalidArgument.
Result<GrammarSequence> SchemaText(const nlohmann::ordered_json& schema, const std::string& place,
                                   GrammarBuilder& builder, JsonGrammar& json);
Result<GrammarSymbol> SchemaNumber(const nlohmann::ordered_json& schema, bool integer,
                                   const std::string& place, GrammarBuilder& builder,
                                   JsonGrammar& json);

}  // namespace kvcache
