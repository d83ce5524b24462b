// Parses JSON that a person, a program or a model wrote, within bounds.
//
// The library that parses recurses when it copies, compares or prints a value, and a byte of text
// can become a hundred bytes of values. So nesting and count are bounded before it sees the text.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache {

inline constexpr int kMaxJsonNesting = 100;  // arrays and objects in one another
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 20;

// Errors: kInvalidArgument: not JSON, with line and column; kUnsupported: nested too deeply or too
// many values, with the bound.
Result<nlohmann::ordered_json> ParseJson(std::string_view text);

}  // namespace kvcache
