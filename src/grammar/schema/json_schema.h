// Turns a JSON schema into the grammar of texts that it allows.
//
// Every text of the grammar is a value that the schema allows, and every such value has a text. Properties come in
// the order of the schema, then the others. Others that the schema neither names nor forbids are unwanted
// (WantedPart), if it names any. keywords.cc lists the keywords.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>

#include "grammar/grammar.h"

namespace kvcache {

// Adds the rule of a schema to `builder`. Errors: kInvalidArgument: a keyword that is not valid or not supported,
// with its place in the schema.
Result<GrammarSymbol> AddJsonSchema(const nlohmann::ordered_json& schema, GrammarBuilder& builder);
}  // namespace kvcache
