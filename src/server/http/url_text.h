// Reads the texts of URLs.
//
// Thread safety: free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvcache::server {

// Returns the text without percent escapes: "a%2Fb" is "a/b". What is no escape stays.
std::string PercentDecoded(std::string_view text);

// Returns a field of a query such as "limit=2&order=asc"; none: it is not there.
std::optional<std::string> QueryField(std::string_view query, std::string_view name);

}  // namespace kvcache::server
