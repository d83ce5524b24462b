// Classifies code points. Pre-tokenizers need no other Unicode data.
//
// The classes are bits: a set of classes is a mask, and testing it is a single AND. They
// are the first letters of the general categories (\p{L}, \p{N}, …) and White_Space. The data
// are Unicode 17's (tools/unicode_classes). llama.cpp has 15.1 (src/unicode-data.cpp); characters that
// are newer differ.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvcache {

using UnicodeClass = std::uint16_t;  // one of the following bits; 0: past the end of a text

inline constexpr UnicodeClass kLetter = 1;
inline constexpr UnicodeClass kNumber = 2;
inline constexpr UnicodeClass kMark = 4;
inline constexpr UnicodeClass kPunctuation = 8;
inline constexpr UnicodeClass kSymbol = 16;
inline constexpr UnicodeClass kWhite = 32;
inline constexpr UnicodeClass kOther = 64;  // controls, formats, unassigned
// Beside kLetter: upper- and title-case letters, and lower-case letters. Other letters have no case.
inline constexpr UnicodeClass kUpperLetter = 128;
inline constexpr UnicodeClass kLowerLetter = 256;

// A range of code points of one class, from `first` to before the next range's `first`.
struct UnicodeRange {
  std::uint32_t first;
  UnicodeClass kind;
};

// Returns the ranges of all code points, ascending from 0.
std::span<const UnicodeRange> UnicodeRanges();

// A character of well-formed UTF-8.
struct Utf8Character {
  std::uint32_t code_point = 0;
  std::uint32_t bytes = 0;
};

// Decodes the character at `at`. REQUIRES: it is complete and well-formed.
inline Utf8Character DecodeUtf8(const char* at) {
  const auto byte = [at](int i) { return std::uint32_t{static_cast<std::uint8_t>(at[i])}; };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// A two-level table: one block for each 256 code points, equal blocks stored once.
class UnicodeTable {
 public:
  UnicodeTable();

  // REQUIRES: code_point < 0x110000.
  UnicodeClass ClassOf(std::uint32_t code_point) const {
    return blocks_[std::size_t{block_of_[code_point >> 8]} << 8 | (code_point & 0xFF)];
  }

 private:
  std::array<std::uint16_t, 0x1100> block_of_{};
  std::vector<UnicodeClass> blocks_;
};

// Returns the table of all classes, built on first use (90 KB).
const UnicodeTable& UnicodeClasses();

}  // namespace kvcache
