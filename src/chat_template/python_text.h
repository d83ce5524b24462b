// Text as Python sees it: code points, its white space, cases, numbers and quoted forms.
//
// Positions are byte offsets. A byte that is not part of well-formed UTF-8 counts as one
// character. Cases are mapped one code point to one, but for "ß"; Python has some hundred more
// that become two or three ("ﬁ").
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/marked_text.h"

namespace kvcache::jinja {

// Bytes of the character at `at`, 1 to 4. REQUIRES: at < text.size().
std::size_t CharacterBytes(std::string_view text, std::size_t at);

// Its code point; a stray byte b is U+DC00 + b, as Python has it.
std::uint32_t CodePoint(std::string_view text, std::size_t at);
void AppendUtf8(std::uint32_t code_point, std::string& out);

std::size_t CountCharacters(std::string_view text);

// Where each character begins, and the end.
std::vector<std::size_t> CharacterOffsets(std::string_view text);

bool IsPythonSpace(std::uint32_t code_point);

// The first place at or after `from`; npos. Linear time, unlike std::string_view::find.
std::size_t FindText(std::string_view text, std::string_view wanted, std::size_t from);

enum class Sides : std::uint8_t { kBoth, kLeft, kRight };
enum class StripSet : std::uint8_t { kSpace, kGiven };

// What is left without the white space (or the `characters`) at the ends.
TextRange StripRange(std::string_view text, Sides sides, StripSet set,
                     std::string_view characters = {});

// Pieces between white space; between `separator` (not empty); the lines. At most `most` cuts,
// from the left or from the right; -1: all.
enum class From : std::uint8_t { kLeft, kRight };
std::vector<TextRange> SplitAtSpace(std::string_view text, std::int64_t most, From from);
std::vector<TextRange> SplitAt(std::string_view text, std::string_view separator, std::int64_t most,
                               From from);
std::vector<TextRange> SplitLines(std::string_view text, bool keep_ends);

enum class Case : std::uint8_t {
  kUpper,
  kLower,
  kCapital,     // the first character upper, the rest lower
  kTitle,       // str.title: each word that follows a character without case
  kTitleWords,  // Jinja's title filter: after blanks, dashes and opening brackets
};
MarkedText MapCase(const MarkedText& text, Case to);
enum class Has : std::uint8_t { kUpper, kLower };
// Python's isupper and islower: some letter with case, and none of the other one.
bool HasOnly(Has has, std::string_view text);
bool IsDigit(std::string_view text);

// Python's repr of a float: "1.0", "1e+16", "nan".
std::string FloatText(double number);

// Python's repr of a text: quotes, escapes.
MarkedText QuotedText(const MarkedText& text);

}  // namespace kvcache::jinja
