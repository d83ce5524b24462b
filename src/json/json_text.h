// Parses JSON that a person, a program or a model wrote, within bounds.
//
// The JSON library recurses when it copies, compares or prints a value; a byte of text can become a
// hundred bytes of values; and an object finds a key by linear search. So nesting, the number of
// values and the keys of one object are bounded before the library sees the text.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache {

inline constexpr int kMaxJsonNesting = 100;  // arrays and objects in one another
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 20;
inline constexpr std::size_t kMaxJsonKeys = 1024;  // in one object

// Returns the value of `text`. Errors: kInvalidArgument: not JSON, with line and column, in at most
// about 200 bytes; kUnsupported: a bound is exceeded, with the bound.
Result<nlohmann::ordered_json> ParseJson(std::string_view text);

}  // namespace kvcache
