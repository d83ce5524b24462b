// Parses the small JSON texts of the store within bounds.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache {

// Returns the value of `text`, which has at most `max_bytes` and 32 levels of nesting. Errors:
// kCorrupt, with the place.
Result<nlohmann::json> ParseBoundedJson(std::string_view text, std::size_t max_bytes);

}  // namespace kvcache
