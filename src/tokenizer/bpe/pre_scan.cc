#include "tokenizer/bpe/pre_scan.h"

#include <algorithm>
#include <array>

namespace kvcache {
namespace {

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

constexpr std::array<UnicodeClass, 128> kAsciiClasses = [] {
  std::array<UnicodeClass, 128> classes{};
  for (unsigned char c = 0; c < 128; ++c) classes[c] = AsciiClass(c);
  return classes;
}();

struct Character {
  UnicodeClass kind = 0;
  std::uint32_t bytes = 0;
};

Character DecodeNonAscii(const char* at) {
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

const char* SkipAscii(const char* at, const char* end, std::string_view ascii) {
  while (at != end && ascii.find(*at) != std::string_view::npos) ++at;
  return at;
}

bool IsLineEnd(char c) {
  return c == '\r' || c == '\n';
}

bool IsLower(char c) {
  return c >= 'a' && c <= 'z';
}

bool IsUpper(char c) {
  return c >= 'A' && c <= 'Z';
}

char Folded(char c, Contraction contraction) {
  return contraction == Contraction::kAnyCase && IsUpper(c) ? static_cast<char>(c + 32) : c;
}

// Returns the bytes of the contraction at `at`; 0 if there is none.
std::ptrdiff_t ContractionAt(const char* at, const char* end, Contraction contraction) {
  if (contraction == Contraction::kNone || end - at < 2 || *at != '\'') return 0;
  const char first = Folded(at[1], contraction);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (end - at < 3) return 0;
  const char second = Folded(at[2], contraction);
  const bool is_long =
      ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return is_long ? 3 : 0;
}

// Returns the end of upper-case letters followed by lower-case letters. Letters beyond ASCII count
// as both. If no ASCII lower-case letter follows, the word ends after its last letter beyond ASCII;
// without such a letter, the word is all upper case.
const char* CasedLettersEnd(const char* at, const char* end, UnicodeClass letters) {
  const char* after_both = nullptr;
  while (at != end && !IsLower(*at)) {
    const Character c = CharacterAt(at);
    if ((c.kind & letters) == 0) break;
    at += c.bytes;
    if (c.bytes > 1) after_both = at;
  }
  if (at == end || !IsLower(*at)) return after_both != nullptr ? after_both : at;
  while (at != end && !IsUpper(*at)) {
    const Character c = CharacterAt(at);
    if ((c.kind & letters) == 0) break;
    at += c.bytes;
  }
  return at;
}

const char* LettersEnd(const WordRules& rules, const char* at, const char* end) {
  at = rules.word_case == WordCase::kCuts ? CasedLettersEnd(at, end, rules.letters)
                                          : SkipClasses(at, end, rules.letters);
  return at + ContractionAt(at, end, rules.suffix);
}

const char* NumbersEnd(const char* at, const char* end, std::uint32_t max_digits) {
  for (; max_digits > 0 && at != end; --max_digits) {
    const Character c = CharacterAt(at);
    if (c.kind != kNumber) break;
    at += c.bytes;
  }
  return at;
}

// Returns the end of a run of spaces. If text follows, the last space is left to the next word.
// With `lines`, a run with line ends stops after the last of them.
const char* SpacesEnd(const char* at, const char* end, bool lines) {
  const char* last = at;
  const char* after_line = nullptr;
  const char* stop = at;
  while (stop != end) {
    const Character c = CharacterAt(stop);
    if (c.kind != kWhite) break;
    last = stop;
    stop += c.bytes;
    if (IsLineEnd(*last)) after_line = stop;
  }
  if (lines && after_line != nullptr) return after_line;
  return stop != end && last != at ? last : stop;
}

// Returns where the letters of the word at `at` begin; nullptr if no word begins there.
const char* LettersBegin(const WordRules& rules, const char* at, const char* end, Character first) {
  if ((first.kind & rules.letters) != 0) return at;
  const bool can_lead = rules.lead == WordLead::kSpace
                            ? *at == ' '
                            : !IsLineEnd(*at) && (first.kind & (kLetter | kNumber)) == 0;
  const char* next = at + first.bytes;
  return can_lead && (ClassAt(next, end) & rules.letters) != 0 ? next : nullptr;
}

// "[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]" and "[\p{Ll}\p{Lm}\p{Lo}\p{M}]". Letters without case and marks are in both.
bool IsUpperPart(UnicodeClass kind) {
  return (kind & (kLetter | kMark)) != 0 && (kind & kLowerLetter) == 0;
}
bool IsLowerPart(UnicodeClass kind) {
  return (kind & (kLetter | kMark)) != 0 && (kind & kUpperLetter) == 0;
}

// Returns the end of the upper part, then of the lower part, that begin at `at`: "[upper]*[lower]+". An upper part
// without a lower part gives back its last character that is in both, with those behind it. Returns nullptr if there
// is none.
const char* LowerWordEnd(const char* at, const char* end) {
  const char* after_both = nullptr;
  while (at != end) {
    const Character c = CharacterAt(at);
    if (!IsUpperPart(c.kind)) break;
    at += c.bytes;
    if (IsLowerPart(c.kind)) after_both = at;
  }
  if (!IsLowerPart(ClassAt(at, end))) return after_both;
  while (IsLowerPart(ClassAt(at, end))) at += CharacterAt(at).bytes;
  return at;
}

// "[upper]+[lower]*", where no lower part follows (else LowerWordEnd found it).
const char* UpperWordEnd(const char* at, const char* end) {
  const char* const begin = at;
  while (IsUpperPart(ClassAt(at, end))) at += CharacterAt(at).bytes;
  return at == begin ? nullptr : at;
}

// "[^\r\n\p{L}\p{N}]?[upper]*[lower]+|[^\r\n\p{L}\p{N}]?[upper]+[lower]*": tries each alternative with the character
// in front, then without. A mark can be that character, or part of the word.
const char* TrainedWordEnd(const char* at, const char* end) {
  const Character first = CharacterAt(at);
  const bool can_lead = !IsLineEnd(*at) && (first.kind & (kLetter | kNumber)) == 0;
  const char* const letters = can_lead ? at + first.bytes : at;
  for (const auto find : {LowerWordEnd, UpperWordEnd}) {
    if (const char* stop = find(letters, end); stop != nullptr) return stop;
    if (const char* stop = find(at, end); stop != nullptr) return stop;
  }
  return nullptr;
}

bool Matches(const RunRules& rules, const char* at, const Character& c) {
  if ((c.kind & rules.classes) != 0) return true;
  if (c.bytes == 1) return rules.ascii.find(*at) != std::string_view::npos;
  if (rules.ranges.empty() || c.kind == kWhite) return false;
  const std::uint32_t code_point = DecodeUtf8(at).code_point;
  const auto range =
      std::lower_bound(rules.ranges.begin(), rules.ranges.end(), code_point,
                       [](const CodePoints& r, std::uint32_t point) { return r.last < point; });
  return range != rules.ranges.end() && code_point >= range->first;
}

const char* RunEnd(const RunRules& rules, const char* at, const char* end) {
  for (std::uint32_t n = 0; n < rules.max_characters && at != end; ++n) {
    const Character c = CharacterAt(at);
    if (!Matches(rules, at, c)) break;
    at += c.bytes;
  }
  return at;
}

// Returns the end of the run that begins at `at` with character `c`; `at` if no run begins there.
const char* RunAt(const RunRules& rules, const char* at, const char* end, const Character& c) {
  if (Matches(rules, at, c)) return RunEnd(rules, at, end);
  if (!rules.takes_space || c.kind != kWhite) return at;
  const char* stop = RunEnd(rules, at + c.bytes, end);
  return stop == at + c.bytes ? at : stop;
}

bool IsThreeDigits(const char* at, const char* end) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return end - at >= 3 && digit(at[0]) && digit(at[1]) && digit(at[2]);
}

// Returns the end of the match at `at`; nullptr if nothing matches.
const char* DeepSeekMatch(const char* at, const char* end) {
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
    return SkipAscii(SkipClasses(signs, end, kSigns), end, "\r\n");
  }
  return first.kind == kWhite ? SpacesEnd(at, end, true) : nullptr;
}

}  // namespace

const char* NextWord(const CutStage& stage, const char* at, const char* end) {
  const WordRules& rules = stage.words;
  if (const auto bytes = ContractionAt(at, end, rules.contraction); bytes > 0) return at + bytes;
  const Character first = CharacterAt(at);
  if (rules.word_case == WordCase::kTrained) {
    if (const char* stop = TrainedWordEnd(at, end); stop != nullptr) {
      return stop + ContractionAt(stop, end, rules.suffix);
    }
  } else if (const char* letters = LettersBegin(rules, at, end, first); letters != nullptr) {
    return LettersEnd(rules, letters, end);
  }
  if (first.kind == kNumber && rules.max_digits > 0) {
    return NumbersEnd(at, end, rules.max_digits);
  }
  const char* rest = *at == ' ' ? at + 1 : at;
  const UnicodeClass kind = ClassAt(rest, end);
  if (kind == kNumber && rules.max_digits == 0) return SkipClasses(rest, end, kNumber);
  if ((kind & rules.others) != 0) {
    return SkipAscii(SkipClasses(rest, end, rules.others), end, rules.tail);
  }
  return first.kind == kWhite ? SpacesEnd(at, end, rules.lines) : at + first.bytes;
}

const char* NextRun(const CutStage& stage, const char* at, const char* end) {
  Character c = CharacterAt(at);
  const char* run = RunAt(stage.runs, at, end, c);
  if (run != at) return run;
  for (at += c.bytes; at != end; at += c.bytes) {
    c = CharacterAt(at);
    if (RunAt({.classes = stage.runs.classes,
               .ascii = stage.runs.ascii,
               .ranges = stage.runs.ranges,
               .max_characters = 1,
               .takes_space = stage.runs.takes_space},
              at, end, c) != at) {
      break;
    }
  }
  return at;
}

const char* NextDeepSeekPart(const CutStage&, const char* at, const char* end) {
  const char* match = DeepSeekMatch(at, end);
  if (match != nullptr) return match;
  do {
    at += CharacterAt(at).bytes;
  } while (at != end && DeepSeekMatch(at, end) == nullptr);
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

}  // namespace kvcache
