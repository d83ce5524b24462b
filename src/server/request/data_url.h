// Reads files out of JSON: base64, and data URLs.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::server {

// Returns the bytes of base64 in the alphabet with + and /. Padding may be missing, and line breaks are left out. Errors:
// kInvalidArgument.
Result<std::vector<std::byte>> DecodeBase64(std::string_view text);

// Returns the bytes of "data:TYPE;base64,…", whatever the type says. Errors: kInvalidArgument for another URL, which nobody
// fetches here.
Result<std::vector<std::byte>> ReadDataUrl(std::string_view url);

}  // namespace kvcache::server
