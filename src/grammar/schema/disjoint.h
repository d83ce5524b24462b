// Tells whether JSON schemas share values.
//
// Thread safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace kvcache {

// Returns whether no value is allowed by two of the schemas, as far as constants, types and required properties
// tell. Of more than 1,024 schemas, or if it takes more than some million comparisons, the answer is false.
bool AreDisjoint(const std::vector<const nlohmann::ordered_json*>& schemas);

}  // namespace kvcache
