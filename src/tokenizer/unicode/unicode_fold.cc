#include "tokenizer/unicode/unicode_fold.h"

#include <algorithm>

#include "tokenizer/unicode/unicode_compose.h"

namespace kvcache {
namespace {

// Returns the range that ends at or behind a code point, if it begins at or before it; else nullptr.
template <typename Range>
const Range* FindRange(std::span<const Range> ranges, std::uint32_t code_point) {
  const auto range =
      std::ranges::lower_bound(ranges, code_point, {}, [](const Range& r) { return r.last; });
  return range != ranges.end() && range->first <= code_point ? &*range : nullptr;
}

// Hangul syllables are counted: a leading consonant, a vowel, and perhaps a trailing consonant.
constexpr std::uint32_t kFirstSyllable = 0xAC00, kFirstLead = 0x1100, kFirstVowel = 0x1161,
                        kFirstTrail = 0x11A7;
constexpr std::uint32_t kVowelCount = 21, kTrailCount = 28, kSyllableCount = 19 * 21 * 28;

CharacterParts HangulParts(std::uint32_t syllable) {
  const std::uint32_t trail = syllable % kTrailCount;
  return {kFirstLead + syllable / (kVowelCount * kTrailCount),
          kFirstVowel + syllable / kTrailCount % kVowelCount, trail == 0 ? 0 : kFirstTrail + trail,
          0};
}

}  // namespace

std::uint32_t LowerCaseOf(std::uint32_t code_point) {
  if (code_point < 0x80) {
    return code_point >= 'A' && code_point <= 'Z' ? code_point + 32 : code_point;
  }
  const LowerCaseRun* const run = FindRange(LowerCaseRuns(), code_point);
  if (run == nullptr || (code_point - run->first) % run->step != 0) return code_point;
  return code_point + static_cast<std::uint32_t>(run->distance);
}

bool IsNonspacingMark(std::uint32_t code_point) {
  return FindRange(NonspacingMarks(), code_point) != nullptr;
}

CharacterParts PartsOf(std::uint32_t code_point) {
  if (code_point < 0xC0) return {code_point};
  if (code_point - kFirstSyllable < kSyllableCount) return HangulParts(code_point - kFirstSyllable);
  const auto all = Decompositions();
  const auto found = std::ranges::lower_bound(all, code_point, {}, &Decomposition::code_point);
  if (found == all.end() || found->code_point != code_point) return {code_point};
  return found->parts;
}

}  // namespace kvcache
