// Conversations, tools and variables from JSON to the values that templates see.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "chat_template/budget.h"
#include "chat_template/value.h"

namespace kvcache::jinja {

enum class Roles : std::uint8_t {
  kForeign,
  // "role" with one of the names that programs give to the sides of a conversation counts as
  // the template's text: templates build control tokens of it ("<|" + role + "|>").
  kKnownAreTrusted,
};

// Strings are foreign. Errors: deeper than kMaxNesting, an integer of more than 64 bits.
Result<Value> FromJson(const nlohmann::ordered_json& json, Roles roles, Budget& budget);

}  // namespace kvcache::jinja
