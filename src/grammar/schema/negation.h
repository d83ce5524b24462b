// The opposite of a JSON schema, as far as a schema can say it.
//
// Thread safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace kvcache {

// Returns a schema for all values that `schema` refuses. It has 'not' only around 'enum', 'pattern', 'format', or the
// type "integer".
// none: it has keywords whose opposite no schema says, or '$ref'.
std::optional<nlohmann::ordered_json> OppositeOf(const nlohmann::ordered_json& schema);

}  // namespace kvcache
