// Reads numbers.
//
// Thread safety: free functions.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvcache {

// Returns the number that all of `text` is; none: it is no number, or one that the type does not
// hold. `base` is an argument of whole numbers: 10 if it is left out.
template <typename Number, typename... Base>
std::optional<Number> ParseNumber(std::string_view text, Base... base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace kvcache
