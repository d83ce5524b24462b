// Parts of a conversation's JSON, whatever a file put into it.
//
// Thread safety: free functions without state.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvcache::cli {

// Whether `message` is an object with this "role".
bool HasRole(const nlohmann::ordered_json& message, std::string_view role);

// The "content" of a message for people: a string as it is, the texts of a list of parts (as
// OpenAI's interface has them) with a newline between two, nothing for none or null, and
// compact JSON for all else.
std::string ContentText(const nlohmann::ordered_json& message);

}  // namespace kvcache::cli
