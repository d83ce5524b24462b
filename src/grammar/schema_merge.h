// Combines JSON schemas that hold together (`allOf`) into one.
//
// Thread safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

// Returns a schema that allows only what all of the schemas allow. Its properties may have `allOf` again.
// REQUIRES: each has the form of a schema, and no `allOf` or `$ref` at its top. Errors: kInvalidArgument: a
// keyword that two of them have, with values that cannot be combined.
Result<nlohmann::ordered_json> MergeSchemas(const std::vector<nlohmann::ordered_json>& schemas,
                                            const std::string& place);

}  // namespace kvcache
