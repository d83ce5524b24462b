// Scanners of single families of vocabularies, and of white space.
#include <array>

#include "tokenizer/bpe/pre_scan.h"
#include "tokenizer/bpe/pre_scan_character.h"

namespace kvcache {
namespace {

// Returns the end of 512, 256, …, 4 or 2 characters, the most that `count` holds; else of one.
const char* PowerEnd(const char* at, std::size_t count) {
  std::size_t power = 512;
  while (power > count && power > 1) power /= 2;
  for (; power > 0; --power) at += CharacterAt(at).bytes;
  return at;
}

bool IsThreeDigits(const char* at, const char* end) {
  return end - at >= 3 && IsDigit(at[0]) && IsDigit(at[1]) && IsDigit(at[2]);
}

// Returns the end of the match at `at`; nullptr if nothing matches.
const char* DeepSeekMatch(const WordRules& rules, const char* at, const char* end) {
  constexpr UnicodeClass kWord = kLetter | kMark;
  constexpr UnicodeClass kSigns = kPunctuation | kSymbol;
  const auto is_ascii_letter = [end](const char* c) {
    return c != end && (IsLower(*c) || IsUpper(*c));
  };
  const Character first = CharacterAt(at);
  const char* next = at + first.bytes;
  if (first.bytes == 1 && (first.kind & kSigns) != 0 && is_ascii_letter(next)) {
    while (is_ascii_letter(next)) ++next;
    return next;
  }
  if ((first.kind & kWord) != 0) return SkipClasses(at, end, kWord);
  if ((first.kind & kSigns) == 0 && !IsLineEnd(*at) && (ClassAt(next, end) & kWord) != 0) {
    return SkipClasses(next, end, kWord);
  }
  const char* signs = *at == ' ' ? next : at;
  if ((ClassAt(signs, end) & kSigns) != 0) {
    return SkipAscii(SkipClasses(signs, end, kSigns), end, rules.tail);
  }
  return first.kind == kWhite ? SpacesEnd(at, end, rules.spaces) : nullptr;
}

const char* DigitsEnd(const char* at, const char* end) {
  while (at != end && IsDigit(*at)) ++at;
  return at;
}

constexpr std::string_view kAsciiSeparators = "(|.,!?)";
constexpr CodePoints kSeparators[] = {{0x060C, 0x060C}, {0x06D4, 0x06D4}, {0x0964, 0x0964},
                                      {0x2026, 0x2026}, {0x3001, 0x3002}, {0xFF0C, 0xFF0C}};

bool IsSeparator(const char* at) {
  const Character c = CharacterAt(at);
  if (c.kind == kWhite) return true;
  if (c.bytes == 1) return kAsciiSeparators.find(*at) != std::string_view::npos;
  return IsInRanges(kSeparators, DecodeUtf8(at).code_point);
}

// Returns the end of Bloom's word at `at`; `at` if there is none.
const char* UnseparatedEnd(const char* at, const char* end) {
  const char* stop = *at == ' ' ? at + 1 : at;
  const char* const begin = stop;
  while (stop != end && !IsSeparator(stop)) stop += CharacterAt(stop).bytes;
  return stop == begin ? at : stop;
}

// Returns the end of the image token at `at`; nullptr if there is none.
const char* ImageTokenEnd(const char* at, const char* end) {
  constexpr std::string_view kBegin = "IMGIMG";
  if (!std::string_view(at, static_cast<std::size_t>(end - at)).starts_with(kBegin)) return nullptr;
  const char* const letters = at + kBegin.size();
  const char* const stop = SkipAscii(letters, end, "ABCDEFGHI", 4);
  return stop != letters && stop != end && *stop == 'Z' ? stop + 1 : nullptr;
}

// Returns the end of a tab, an end of a line, four or two spaces; `at` if there is none.
const char* IndentEnd(const char* at, const char* end) {
  if (*at == '\t' || *at == '\n') return at + 1;
  const auto spaces = SkipAscii(at, end, " ", 4) - at;
  return at + (spaces == 4 ? 4 : spaces >= 2 ? 2 : 0);
}

}  // namespace

const char* SpacesEnd(const char* at, const char* end, Spaces spaces) {
  if (spaces == Spaces::kLineEnds && IsLineEnd(*at)) return at + 1;
  const char* last = at;
  const char* after_line = nullptr;
  const char* stop = at;
  std::size_t count = 0;
  for (; stop != end; ++count) {
    const Character c = CharacterAt(stop);
    if (c.kind != kWhite) break;
    last = stop;
    stop += c.bytes;
    if (IsLineEnd(*last)) after_line = stop;
  }
  const bool lines = spaces == Spaces::kLines || spaces == Spaces::kPowers;
  if (lines && after_line != nullptr) return after_line;
  if (spaces == Spaces::kPowers) return PowerEnd(at, stop == end ? count : count - 1);
  return stop != end && last != at ? last : stop;
}

const char* NextDeepSeekPart(const CutStage& stage, const char* at, const char* end) {
  const char* match = DeepSeekMatch(stage.words, at, end);
  if (match != nullptr) return match;
  do {
    at += CharacterAt(at).bytes;
  } while (at != end && DeepSeekMatch(stage.words, at, end) == nullptr);
  return at;
}

const char* NextThreeDigits(const CutStage&, const char* at, const char* end) {
  if (IsThreeDigits(at, end)) return at + 3;
  do {
    ++at;
  } while (at != end && !IsThreeDigits(at, end));
  return at;
}

const char* NextTrailingSpaces(const CutStage&, const char* at, const char* end) {
  const char* spaces = at;  // begin of the last run of spaces
  for (const char* next = at; next != end;) {
    const Character c = CharacterAt(next);
    next += c.bytes;
    if (c.kind != kWhite) spaces = next;
  }
  return spaces == at ? end : spaces;
}

const char* NextLine(const CutStage&, const char* at, const char* end) {
  const bool line_end = *at == '\n';
  while (at != end && (*at == '\n') == line_end) ++at;
  return at;
}

const char* NextNumberGroup(const CutStage&, const char* at, const char* end) {
  if (CharacterAt(at).kind != kNumber) return end;
  std::size_t numbers = 0;
  for (const char* next = at; next != end; next += CharacterAt(next).bytes) ++numbers;
  if (numbers % 3 == 0) return end;
  for (numbers %= 3; numbers > 0; --numbers) at += CharacterAt(at).bytes;
  return at;
}

const char* NextTripleRun(const CutStage&, const char* at, const char* end) {
  const char* digits = at;  // begin of a run of digits
  if (const char* stop = DigitsEnd(at, end); (stop - at) % 3 == 0) digits = stop;
  while (digits != end) {
    const char* const stop = DigitsEnd(digits, end);
    if (stop - digits >= 3) return digits + (stop - digits) % 3;
    digits = stop == digits ? stop + 1 : stop;
  }
  return end;
}

const char* NextTriple(const CutStage&, const char* at, const char* end) {
  return end - at > 3 && IsThreeDigits(at, end) && IsDigit(at[3]) ? at + 3 : end;
}

const char* NextUnseparated(const CutStage&, const char* at, const char* end) {
  const char* match = UnseparatedEnd(at, end);
  if (match != at) return match;
  do {
    at += CharacterAt(at).bytes;
  } while (at != end && UnseparatedEnd(at, end) == at);
  return at;
}

const char* NextImageToken(const CutStage&, const char* at, const char* end) {
  if (const char* stop = ImageTokenEnd(at, end); stop != nullptr) return stop;
  do {
    ++at;
  } while (at != end && ImageTokenEnd(at, end) == nullptr);
  return at;
}

const char* NextIndent(const CutStage&, const char* at, const char* end) {
  const char* stop = IndentEnd(at, end);
  if (stop != at) return stop;
  do {
    ++at;
  } while (at != end && IndentEnd(at, end) == at);
  return at;
}

}  // namespace kvcache
