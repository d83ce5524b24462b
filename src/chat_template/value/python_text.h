// Python's string functions: code points, white space, case, numbers and repr.
//
// Positions are byte offsets. A byte that is not part of well-formed UTF-8 counts as one character.
// Case mapping replaces one code point by one, except "ß"; Python maps about a hundred more to two
// or three ("ﬁ").
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/value/marked_text.h"

namespace kvcache::jinja {

// Returns the bytes of the character at `at`, 1 to 4. REQUIRES: at < text.size().
std::size_t CharacterBytes(std::string_view text, std::size_t at);

// Returns the code point of the character at `at`. A stray byte b is U+DC00 + b, as in Python.
std::uint32_t CodePoint(std::string_view text, std::size_t at);
void AppendCodePoint(std::uint32_t code_point, std::string& out);

std::size_t CountCharacters(std::string_view text);

// Returns the offset of each character, then text.size().
std::vector<std::size_t> CharacterOffsets(std::string_view text);

bool IsPythonSpace(std::uint32_t code_point);

// Returns the first match at or after `from`; npos if there is none. Linear time, unlike
// std::string_view::find.
std::size_t FindText(std::string_view text, std::string_view wanted, std::size_t from);

enum class Sides : std::uint8_t { kBoth, kLeft, kRight };
enum class StripSet : std::uint8_t { kSpace, kGiven };

// Returns the range that remains after white space (or `characters`) is stripped from the ends.
TextRange StripRange(std::string_view text, Sides sides, StripSet set,
                     std::string_view characters = {});

// Return the pieces between white space, the pieces between `separator` (not empty), and the lines.
// Cut at most `max_cuts` times (-1: no limit), from the left or from the right.
enum class From : std::uint8_t { kLeft, kRight };
std::vector<TextRange> SplitAtSpace(std::string_view text, std::int64_t max_cuts, From from);
std::vector<TextRange> SplitAt(std::string_view text, std::string_view separator,
                               std::int64_t max_cuts, From from);
std::vector<TextRange> SplitLines(std::string_view text, bool keep_ends);

enum class Case : std::uint8_t {
  kUpper,
  kLower,
  kCapital,     // the first character upper, the rest lower
  kTitle,       // str.title: each word that follows a character without case
  kTitleWords,  // Jinja's filter title: upper after blanks, dashes and opening brackets
};
MarkedText MapCase(const MarkedText& text, Case to);
enum class LetterCase : std::uint8_t { kUpper, kLower };
// Python's isupper and islower: returns whether the text has cased letters, all of this case.
bool IsAll(LetterCase expected, std::string_view text);
bool IsDigit(std::string_view text);

// Returns Python's repr of a float: "1.0", "1e+16", "nan".
std::string FloatText(double number);

// Returns Python's repr of a text, with quotes and escapes.
MarkedText QuotedText(const MarkedText& text);

}  // namespace kvcache::jinja
