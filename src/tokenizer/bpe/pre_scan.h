// Scanners that cut text into words before merging. Pre-tokenizers consist of them.
//
// Each vocabulary of byte-level BPE has one or several regular expressions whose matches are its
// words; no merge crosses the end of a word. Few such expressions exist, and they consist of few
// parts. So each part is a scanner here, and an expression is a row of rules. No regular expression
// is interpreted, each character is read once or twice, and nothing backtracks.
//
// A CutStage returns the end of the part that begins at `at`. Text that no expression matches forms
// parts, too. The text must be well-formed UTF-8.
//
// Source: llama.cpp (src/llama-vocab.cpp, src/unicode.cpp), which cuts at the same places.
// Thread safety: functions of their arguments.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tokenizer/unicode/unicode_class.h"

namespace kvcache {

struct CodePoints {
  std::uint32_t first;
  std::uint32_t last;
};

// 's 't 'm 'd 're 've 'll
enum class Contraction : std::uint8_t { kNone, kLowerCase, kAnyCase };

// The character that may precede the letters of a word.
enum class WordLead : std::uint8_t {
  kSpace,  // " ?": a space; for numbers, too
  kAny,    // "[^\r\n\p{L}\p{N}]?": anything but ends of lines, letters and numbers
};

// Where runs of white space end that no other rule takes.
enum class Spaces : std::uint8_t {
  kRuns,      // "\s+(?!\S)|\s+": before the last character if text follows
  kLines,     // "\s*[\r\n]+", else as kRuns: behind the last end of a line
  kLineEnds,  // "[\r\n]", else as kRuns: each end of a line that begins a run is a word
  kPowers,    // as kLines, but runs of 512, 256, …, 4 and 2 or 1 characters instead of all
};

// Whether an upper-case letter inside a word begins the next word: not; yes, where letters beyond ASCII count as
// both cases and marks are no letters, as in llama.cpp; or yes, by the letters' own cases, with marks in words, as GPT-4o
// was trained.
enum class WordCase : std::uint8_t { kIgnored, kCuts, kTrained };

// A whole expression of the common form. Its alternatives are tried in this order:
//   contraction | lead letters suffix | numbers | space? others tail | spaces
struct WordRules {
  Contraction contraction = Contraction::kNone;
  WordLead lead = WordLead::kSpace;
  UnicodeClass letters = kLetter;
  WordCase word_case = WordCase::kIgnored;
  Contraction suffix = Contraction::kNone;
  std::uint32_t max_digits = 0;  // numbers per word; 0: no limit, and a lead before them
  UnicodeClass others = kMark | kPunctuation | kSymbol | kOther;
  std::string_view tail{};  // ASCII characters that may follow `others`
  std::uint32_t max_tail = ~std::uint32_t{0};
  Spaces spaces = Spaces::kRuns;
  bool phrases = false;  // letters go on behind one space, and marks follow letters (EXAONE MoE)
  std::span<const CodePoints> apart = {};  // letters whose runs are words of their own, ascending
};

// Runs of characters that become parts of their own: "[…]{1,max_characters}".
struct RunRules {
  UnicodeClass classes = 0;
  std::string_view ascii{};                 // and these
  std::span<const CodePoints> ranges = {};  // and these, ascending; white space never matches
  std::uint32_t max_characters = ~std::uint32_t{0};
  bool takes_space = false;  // "\s?" in front
};

struct CutStage {
  // Returns the end of the part that begins at `at`, in (at, end]. REQUIRES: at < end.
  using Next = const char* (*)(const CutStage& stage, const char* at, const char* end);
  Next next = nullptr;
  WordRules words = {};
  RunRules runs = {};
};

// Applies stage.words.
const char* NextWord(const CutStage& stage, const char* at, const char* end);
// Applies stage.runs: returns the end of a run, or of the text before the next run.
const char* NextRun(const CutStage& stage, const char* at, const char* end);
// DeepSeek V3: ASCII letters after a punctuation mark; letters and marks; punctuation and
// symbols with `tail`; spaces. Takes tail and spaces from stage.words.
const char* NextDeepSeekPart(const CutStage& stage, const char* at, const char* end);
// "[0-9][0-9][0-9]".
const char* NextThreeDigits(const CutStage& stage, const char* at, const char* end);
// "\s+$": the spaces at the end of a part.
const char* NextTrailingSpaces(const CutStage& stage, const char* at, const char* end);
// "[^\n]+|[\n]+".
const char* NextLine(const CutStage& stage, const char* at, const char* end);
// Cuts the first one or two numbers from a part of numbers, so that the rest are groups of three.
const char* NextNumberGroup(const CutStage& stage, const char* at, const char* end);
// "(?=(\d{3})+(?!\d))" cuts before each three digits of a run, counted from its end. NextTripleRun cuts the text
// before the first three. NextTriple cuts what follows into threes.
const char* NextTripleRun(const CutStage& stage, const char* at, const char* end);
const char* NextTriple(const CutStage& stage, const char* at, const char* end);
// " ?[^(\s|.,!?…。，、।۔،)]+": Bloom's words.
const char* NextUnseparated(const CutStage& stage, const char* at, const char* end);
// "IMGIMG[A-I]{1,4}Z": Chameleon's image tokens.
const char* NextImageToken(const CutStage& stage, const char* at, const char* end);
// "[\t\n]|    |  ".
const char* NextIndent(const CutStage& stage, const char* at, const char* end);

// Cuts [at, end) by the first stage, each part by the second stage, and so on. Visits the parts of
// the last stage in order.
template <typename Visitor>
void CutText(std::span<const CutStage> stages, const char* at, const char* end,
             const Visitor& visit) {
  if (stages.empty()) return visit(std::string_view(at, static_cast<std::size_t>(end - at)));
  while (at != end) {
    const char* next = stages.front().next(stages.front(), at, end);
    CutText(stages.subspan(1), at, next, visit);
    at = next;
  }
}

}  // namespace kvcache
