// A SentencePiece normalisation in the format of model files: strings and their replacements.
//
//   4 bytes     n, the size of the trie
//   n bytes     a double array of 32-bit units, compressed with XOR: the strings to replace
//   the rest    the replacements, each ended by a zero byte
//
//   unit        bits 0-7 the byte that leads here, 8 whether a string ends here, 9 whether the
//               offset is in units of 256, 10-30 the offset; or bit 31 set, 0-30 the place of the
//               replacement
//   children    of the unit at i are at i ^ offset ^ byte, its replacement's unit at i ^ offset
//
// Source: SentencePiece (src/normalizer.cc) and darts-clone; S. Kanda, "Space- and Time-Efficient
// String Dictionaries", 2018; llama.cpp, src/llama-vocab.cpp.
// Thread safety: const calls may run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

class Charsmap {
 public:
  // A map without entries.
  Charsmap() = default;

  // Copies `bytes`. Checks every entry that a text can reach, so that Longest needs no checks.
  // Errors: kCorrupt: sizes that contradict each other, a unit that points outside, replacements
  // without an end, strings of more than 256 bytes on either side, a trie with a cycle.
  // Cost: O(256 units).
  static Result<Charsmap> Make(std::string_view bytes);

  struct Match {
    std::size_t bytes = 0;  // of the text; 0: nothing is replaced here
    std::string_view replacement;
  };

  // Returns the longest entry that `text` begins with.
  Match Longest(std::string_view text) const;

  // Returns whether this byte is never replaced if an ASCII character follows it.
  bool KeepsBeforeAscii(std::uint8_t byte) const { return keeps_[byte]; }

 private:
  class Checker;

  std::uint32_t OffsetOf(std::uint32_t unit) const {
    return (units_[unit] >> 10) << ((units_[unit] & 0x200) >> 6);
  }
  bool IsChild(std::uint32_t unit, std::uint8_t byte) const {
    return (units_[unit] & 0x800000FF) == byte;
  }
  bool EndsHere(std::uint32_t unit) const { return (units_[unit] & 0x100) != 0; }

  Status Check() const;
  Status CheckReplacement(std::uint32_t unit) const;
  void FindKept();

  std::vector<std::uint32_t> units_;
  std::string replacements_;
  std::array<bool, 256> keeps_ = [] {
    std::array<bool, 256> all{};
    all.fill(true);
    return all;
  }();
};

}  // namespace kvcache
