// Reads and writes characters of UTF-8.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

// Returns the number of bytes of the character at the beginning of `text`; 0 if `text` holds only
// the first bytes of one; -1 if its first byte begins none. REQUIRES: !text.empty().
int CharacterLength(std::string_view text);

// Returns the code point of a whole character. REQUIRES: it is well-formed.
std::uint32_t CodePointOf(std::string_view character);

// Appends the bytes of a code point, one below U+110000.
void AppendUtf8(std::uint32_t code_point, std::string& out);

// Returns whether the byte is one behind the first of a character.
constexpr bool IsContinuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Returns the beginning of a text, of `max_bytes` at most, that ends between characters.
std::string_view BeginningOf(std::string_view text, std::size_t max_bytes);

}  // namespace kvcache
