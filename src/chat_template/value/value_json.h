// Converts conversations, tools and variables from JSON to template values.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "chat_template/value/budget.h"
#include "chat_template/value/value.h"

namespace kvcache::jinja {

enum class Roles : std::uint8_t {
  kForeign,
  // A "role" with a well-known name counts as text of the template, because templates build control
  // tokens of it ("<|" + role + "|>").
  kKnownAreTrusted,
};

// Returns `json` as a value. Strings are foreign. Errors: nested deeper than kMaxNesting, an
// integer of 2^63 or more.
Result<Value> FromJson(const nlohmann::ordered_json& json, Roles roles, Budget& budget);

}  // namespace kvcache::jinja
