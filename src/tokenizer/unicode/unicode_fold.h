// Forms of characters that ignore case and accents, which some vocabularies were trained with: "É" becomes "e".
//
// The data are those of unicode_class.h's version (tools/unicode_classes). Source: the Unicode Standard, chapters 3.11
// (decomposition), 3.12 (Hangul syllables) and 5.18 (case mappings).
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace kvcache {

// Returns the lower-case letter of a character: itself if it has none, or one of several characters.
std::uint32_t LowerCaseOf(std::uint32_t code_point);

// Returns whether a character is a mark that takes no space of its own (\p{Mn}).
bool IsNonspacingMark(std::uint32_t code_point);

// The parts of a character that canonical decomposition gives; 0 behind the last one.
using CharacterParts = std::array<std::uint32_t, 4>;
CharacterParts PartsOf(std::uint32_t code_point);

// ---- Data

// Characters first, first + step, … last, whose lower-case letters are `distance` behind them.
struct LowerCaseRun {
  std::uint32_t first;
  std::uint32_t last;
  std::uint32_t step;
  std::int32_t distance;
};
struct MarkRange {
  std::uint32_t first;
  std::uint32_t last;
};

// Each is in the order of the code points.
std::span<const LowerCaseRun> LowerCaseRuns();
std::span<const MarkRange> NonspacingMarks();

}  // namespace kvcache
