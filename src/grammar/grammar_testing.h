// Grammars of JSON schemas, for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "grammar/json_schema.h"

namespace kvcache {

inline Result<Grammar> GrammarOfSchema(const std::string& schema) {
  GrammarBuilder builder;
  KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol root,
                           AddJsonSchema(nlohmann::ordered_json::parse(schema), builder));
  return builder.Finish(root);
}

}  // namespace kvcache
