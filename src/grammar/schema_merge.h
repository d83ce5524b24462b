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
// keyword that two of them have, with values that cannot be combined; more than 1,024 properties, or entries of
// "required" or "enum", in one schema or in what some of them make.
Result<nlohmann::ordered_json> MergeSchemas(const std::vector<nlohmann::ordered_json>& schemas,
                                            const std::string& place);

}  // namespace kvcache
