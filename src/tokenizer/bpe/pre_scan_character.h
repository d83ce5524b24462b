// Characters and runs of them, for the scanners of pre-tokenizers.
//
// Thread safety: functions of their arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tokenizer/bpe/pre_scan.h"
#include "tokenizer/unicode/unicode_class.h"

namespace kvcache {

// The classes of ASCII characters, so that most text needs no look-up in the Unicode table.
constexpr UnicodeClass AsciiClass(unsigned char c) {
  if (c >= 'a' && c <= 'z') return kLetter | kLowerLetter;
  if (c >= 'A' && c <= 'Z') return kLetter | kUpperLetter;
  if (c >= '0' && c <= '9') return kNumber;
  if (c == ' ' || (c >= '\t' && c <= '\r')) return kWhite;
  if (c < ' ' || c == 0x7F) return kOther;
  return std::string_view("$+<=>^`|~").find(static_cast<char>(c)) != std::string_view::npos
             ? kSymbol
             : kPunctuation;
}

inline constexpr std::array<UnicodeClass, 128> kAsciiClasses = [] {
  std::array<UnicodeClass, 128> classes{};
  for (unsigned char c = 0; c < 128; ++c) classes[c] = AsciiClass(c);
  return classes;
}();

struct Character {
  UnicodeClass kind = 0;
  std::uint32_t bytes = 0;
};

inline Character DecodeNonAscii(const char* at) {
  const Utf8Character decoded = DecodeUtf8(at);
  return {UnicodeClasses().ClassOf(decoded.code_point), decoded.bytes};
}

inline Character CharacterAt(const char* at) {
  const auto lead = static_cast<unsigned char>(*at);
  if (lead < 128) return {kAsciiClasses[lead], 1};
  return DecodeNonAscii(at);
}

inline UnicodeClass ClassAt(const char* at, const char* end) {
  return at == end ? UnicodeClass{0} : CharacterAt(at).kind;
}

inline const char* SkipClasses(const char* at, const char* end, UnicodeClass classes) {
  while (at != end) {
    const Character c = CharacterAt(at);
    if ((c.kind & classes) == 0) break;
    at += c.bytes;
  }
  return at;
}

inline const char* SkipAscii(const char* at, const char* end, std::string_view ascii,
                             std::uint32_t max = ~std::uint32_t{0}) {
  for (; max > 0 && at != end && ascii.find(*at) != std::string_view::npos; --max) ++at;
  return at;
}

inline bool IsLineEnd(char c) {
  return c == '\r' || c == '\n';
}

inline bool IsLower(char c) {
  return c >= 'a' && c <= 'z';
}

inline bool IsUpper(char c) {
  return c >= 'A' && c <= 'Z';
}

inline bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// Returns the end of a run of spaces that begins at `at`.
const char* SpacesEnd(const char* at, const char* end, Spaces spaces);

// Returns whether ascending ranges hold a code point.
bool IsInRanges(std::span<const CodePoints> ranges, std::uint32_t code_point);

}  // namespace kvcache
