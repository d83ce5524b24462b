#include "chat_template/value/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/utf8.h"

namespace kvcache::jinja {
namespace {

constexpr std::uint32_t kStrayByte = 0xDC00;

bool IsIn(std::string_view characters, std::string_view character) {
  for (std::size_t at = 0; at < characters.size();) {
    const std::size_t length = CharacterBytes(characters, at);
    if (characters.substr(at, length) == character) return true;
    at += length;
  }
  return false;
}

// Returns the offset of the character that ends at `at`. REQUIRES: at > 0.
std::size_t PreviousCharacter(std::string_view text, std::size_t at) {
  for (std::size_t back = std::min<std::size_t>(4, at); back > 1; --back) {
    if (CharacterBytes(text, at - back) == back) return at - back;
  }
  return at - 1;
}

bool Strips(std::string_view text, std::size_t begin, std::size_t end, StripSet set,
            std::string_view characters) {
  if (set == StripSet::kSpace) return IsPythonSpace(CodePoint(text, begin));
  return IsIn(characters, text.substr(begin, end - begin));
}

// Returns the length of the line end at `at`, as for Python's splitlines; 0 if there is none.
std::size_t LineEnd(std::string_view text, std::size_t at) {
  const std::uint32_t c = CodePoint(text, at);
  if (c == '\r' && at + 1 < text.size() && text[at + 1] == '\n') return 2;
  const bool ends = (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                    c == 0x2028 || c == 0x2029;
  return ends ? CharacterBytes(text, at) : 0;
}

}  // namespace

std::size_t CharacterBytes(std::string_view text, std::size_t at) {
  return static_cast<std::size_t>(std::max(CharacterLength(text.substr(at)), 1));
}

std::uint32_t CodePoint(std::string_view text, std::size_t at) {
  const int length = CharacterLength(text.substr(at));
  if (length > 0) return CodePointOf(text.substr(at, static_cast<std::size_t>(length)));
  return kStrayByte + static_cast<std::uint8_t>(text[at]);
}

void AppendCodePoint(std::uint32_t code, std::string& out) {
  const bool is_stray = code >= kStrayByte + 0x80 && code <= kStrayByte + 0xFF;
  is_stray ? out.push_back(static_cast<char>(code - kStrayByte)) : AppendUtf8(code, out);
}

std::size_t CountCharacters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += CharacterBytes(text, at)) ++count;
  return count;
}

std::vector<std::size_t> CharacterOffsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < text.size(); at += CharacterBytes(text, at)) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

bool IsPythonSpace(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::size_t FindText(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (wanted.empty()) return from;
  // memmem takes no null pointer, which an empty text may have.
  if (wanted.size() > text.size() - from) return std::string_view::npos;
  const void* at = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (at == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

TextRange StripRange(std::string_view text, Sides sides, StripSet set,
                     std::string_view characters) {
  TextRange range{0, text.size()};
  while (sides != Sides::kRight && range.begin < range.end) {
    const std::size_t next = range.begin + CharacterBytes(text, range.begin);
    if (!Strips(text, range.begin, next, set, characters)) break;
    range.begin = next;
  }
  while (sides != Sides::kLeft && range.begin < range.end) {
    const std::size_t last = PreviousCharacter(text, range.end);
    if (!Strips(text, last, range.end, set, characters)) break;
    range.end = last;
  }
  return range;
}

std::vector<TextRange> SplitAtSpace(std::string_view text, std::int64_t max_cuts, From from) {
  std::vector<TextRange> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = at + CharacterBytes(text, at);
    const bool space = IsPythonSpace(CodePoint(text, at));
    const bool goes_on = !words.empty() && words.back().end == at;
    if (!space && goes_on) words.back().end = next;
    if (!space && !goes_on) words.push_back({at, next});
    at = next;
  }
  if (max_cuts < 0 || words.size() <= static_cast<std::size_t>(max_cuts) + 1) return words;
  // The last piece is the rest of the text. Like Python, keep the white space at its outer end.
  const auto cuts = static_cast<std::size_t>(max_cuts);
  if (from == From::kLeft) {
    words[cuts].end = text.size();
    words.resize(cuts + 1);
  } else {
    words[words.size() - cuts - 1].begin = 0;
    words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(cuts) - 1);
  }
  return words;
}

std::vector<TextRange> SplitAt(std::string_view text, std::string_view separator,
                               std::int64_t max_cuts, From from) {
  if (from == From::kRight) {
    std::vector<TextRange> pieces;
    std::size_t end = text.size();
    while (max_cuts < 0 || pieces.size() < static_cast<std::size_t>(max_cuts)) {
      const std::size_t at = text.substr(0, end).rfind(separator);
      if (at == std::string_view::npos) break;
      pieces.push_back({at + separator.size(), end});
      end = at;
    }
    pieces.push_back({0, end});
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  }
  std::vector<TextRange> pieces;
  std::size_t begin = 0;
  while (max_cuts < 0 || pieces.size() < static_cast<std::size_t>(max_cuts)) {
    const std::size_t at = FindText(text, separator, begin);
    if (at == std::string_view::npos) break;
    pieces.push_back({begin, at});
    begin = at + separator.size();
  }
  pieces.push_back({begin, text.size()});
  return pieces;
}

std::vector<TextRange> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<TextRange> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = LineEnd(text, at);
    if (end == 0) {
      at += CharacterBytes(text, at);
      continue;
    }
    lines.push_back({begin, keep_ends ? at + end : at});
    at += end;
    begin = at;
  }
  if (begin < text.size()) lines.push_back({begin, text.size()});
  return lines;
}

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char digits[64];
  const auto scientific =
      std::to_chars(digits, digits + sizeof(digits), number, std::chars_format::scientific);
  std::string text(digits, scientific.ptr);
  const std::size_t at = text.find('e');
  const int exponent = std::atoi(text.c_str() + at + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed =
      std::to_chars(digits, digits + sizeof(digits), number, std::chars_format::fixed);
  text.assign(digits, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace kvcache::jinja
