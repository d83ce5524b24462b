// Checks that the keywords of a JSON schema have the form that the standard gives them, those of other types
// of values too: {"type": "string", "minimum": "x"} is no schema.
//
// Thread safety: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

// Checks one schema, without those inside of it. `place` is for messages. Errors: kInvalidArgument with the
// place and the keyword.
Status CheckSchemaForm(const nlohmann::ordered_json& schema, const std::string& place);

}  // namespace kvcache
