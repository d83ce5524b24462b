#include "tokenizer/bpe/pre_scan.h"

#include <algorithm>

#include "tokenizer/bpe/pre_scan_character.h"

namespace kvcache {
namespace {

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

// "(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+".
const char* PhraseEnd(const char* at, const char* end) {
  while (at != end) {
    const bool next_word = *at == ' ' && (ClassAt(at + 1, end) & kLetter) != 0;
    const char* const letter = next_word ? at + 1 : at;
    const Character c = CharacterAt(letter);
    if ((c.kind & kLetter) == 0) break;
    at = SkipClasses(letter + c.bytes, end, kMark);
  }
  return at;
}

const char* LettersEnd(const WordRules& rules, const char* at, const char* end) {
  if (rules.phrases) return PhraseEnd(at, end);
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

// Returns the character's classes within words: letters that stand apart are none.
UnicodeClass WordClassAt(const WordRules& rules, const char* at, const char* end) {
  const UnicodeClass kind = ClassAt(at, end);
  if (rules.apart.empty() || at == end || static_cast<unsigned char>(*at) < 128) return kind;
  return IsInRanges(rules.apart, DecodeUtf8(at).code_point) ? UnicodeClass{0} : kind;
}

// Returns the end of the upper part, then of the lower part, that begin at `at`: "[upper]*[lower]+". An upper part
// without a lower part gives back its last character that is in both, with those behind it. Returns nullptr if there
// is none.
const char* LowerWordEnd(const WordRules& rules, const char* at, const char* end) {
  const char* after_both = nullptr;
  UnicodeClass kind = WordClassAt(rules, at, end);
  for (; IsUpperPart(kind); kind = WordClassAt(rules, at, end)) {
    at += CharacterAt(at).bytes;
    if (IsLowerPart(kind)) after_both = at;
  }
  if (!IsLowerPart(kind)) return after_both;
  while (IsLowerPart(WordClassAt(rules, at, end))) at += CharacterAt(at).bytes;
  return at;
}

// "[upper]+[lower]*", where no lower part follows (else LowerWordEnd found it).
const char* UpperWordEnd(const WordRules& rules, const char* at, const char* end) {
  const char* const begin = at;
  while (IsUpperPart(WordClassAt(rules, at, end))) at += CharacterAt(at).bytes;
  return at == begin ? nullptr : at;
}

// "[^\r\n\p{L}\p{N}]?[upper]*[lower]+|[^\r\n\p{L}\p{N}]?[upper]+[lower]*": tries each alternative with the character
// in front, then without. A mark can be that character, or part of the word.
const char* TrainedWordEnd(const WordRules& rules, const char* at, const char* end) {
  const Character first = CharacterAt(at);
  const bool can_lead = !IsLineEnd(*at) && (first.kind & (kLetter | kNumber)) == 0;
  const char* const letters = can_lead ? at + first.bytes : at;
  for (const auto find : {LowerWordEnd, UpperWordEnd}) {
    if (const char* stop = find(rules, letters, end); stop != nullptr) return stop;
    if (const char* stop = find(rules, at, end); stop != nullptr) return stop;
  }
  return nullptr;
}

// Returns the end of the letters that stand apart; `at` if there are none.
const char* ApartEnd(const WordRules& rules, const char* at, const char* end) {
  while (!rules.apart.empty() && at != end && static_cast<unsigned char>(*at) >= 128) {
    const Utf8Character c = DecodeUtf8(at);
    if (!IsInRanges(rules.apart, c.code_point)) break;
    at += c.bytes;
  }
  return at;
}

bool Matches(const RunRules& rules, const char* at, const Character& c) {
  if ((c.kind & rules.classes) != 0) return true;
  if (c.bytes == 1) return rules.ascii.find(*at) != std::string_view::npos;
  if (rules.ranges.empty() || c.kind == kWhite) return false;
  return IsInRanges(rules.ranges, DecodeUtf8(at).code_point);
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

}  // namespace

bool IsInRanges(std::span<const CodePoints> ranges, std::uint32_t code_point) {
  const auto range =
      std::lower_bound(ranges.begin(), ranges.end(), code_point,
                       [](const CodePoints& r, std::uint32_t point) { return r.last < point; });
  return range != ranges.end() && code_point >= range->first;
}

const char* NextWord(const CutStage& stage, const char* at, const char* end) {
  const WordRules& rules = stage.words;
  if (const char* stop = ApartEnd(rules, at, end); stop != at) return stop;
  if (const auto bytes = ContractionAt(at, end, rules.contraction); bytes > 0) return at + bytes;
  const Character first = CharacterAt(at);
  if (rules.word_case == WordCase::kTrained) {
    if (const char* stop = TrainedWordEnd(rules, at, end); stop != nullptr) {
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
    return SkipAscii(SkipClasses(rest, end, rules.others), end, rules.tail, rules.max_tail);
  }
  return first.kind == kWhite ? SpacesEnd(at, end, rules.spaces) : at + first.bytes;
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

}  // namespace kvcache
