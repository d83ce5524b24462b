// Spells bytes as characters, as byte-level vocabularies do.
//
// The 188 bytes that are visible Latin-1 characters stand for themselves, the other 68 (blanks,
// controls, no-break space, soft hyphen) are U+0100, U+0101, … in order: a space is "Ġ" (U+0120).
// So the text of every token is printable, whatever its bytes are.
//
// Source: GPT-2's bytes_to_unicode (openai/gpt-2, src/encoder.py).
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

// Appends the character for `byte`: one or two bytes of UTF-8.
void AppendSpelledByte(std::uint8_t byte, std::string* out);

// Returns `bytes` in the alphabet.
std::string SpellBytes(std::string_view bytes);

// Appends the bytes that `spelled` stands for. Characters outside the alphabet and broken UTF-8 are
// appended unchanged; then it returns false.
bool AppendBytesOf(std::string_view spelled, std::string* out);

}  // namespace kvcache
