// Text for people: StrCat joins text and numbers, Quoted makes foreign bytes fit to print, and
// large numbers get their commas and units.
//
// Thread safety: free functions without state.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {
namespace strings_internal {

inline void Append(std::string& out, std::string_view text) {
  out += text;
}
inline void Append(std::string& out, char character) {
  out += character;
}

template <typename Number>
requires((std::integral<Number> || std::floating_point<Number>)&&!std::same_as<Number, bool> &&
         !std::same_as<Number, char>) void Append(std::string& out, Number number) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  out.append(digits, end);
}

}  // namespace strings_internal

// "a", 1, 2.5 -> "a12.5". Floats in the fewest digits that give the same value back.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::string out;
  (strings_internal::Append(out, parts), ...);
  return out;
}

// 'text' in single quotes; bytes outside printable ASCII as \xNN, the middle of what is longer
// than `max_bytes` left out: safe to put into a message whatever the bytes are.
std::string Quoted(std::string_view text, std::size_t max_bytes = 80);

// A message that may hold foreign text, fit for a terminal's line: the bytes of control characters
// (U+0000 to U+001F, U+007F to U+009F) and bytes that are not UTF-8 as \xNN, all else as it is.
std::string OneLine(std::string_view text);

// 48879 -> "000000000000beef".
std::string HexText(std::uint64_t number);

// 1204 -> "1,204".
std::string WithThousands(std::int64_t number);

// 1500000000 -> "1.4 GiB".
std::string HumanBytes(std::int64_t bytes);

}  // namespace kvcache
