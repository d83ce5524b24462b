// Upper and lower case, digits, and Python's repr of a text.
#include <clocale>
#include <cwctype>

#include "base/strings.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

// Unicode's simple case mappings, taken from the C library's locale C.UTF-8, not from the user's
// locale. Without C.UTF-8, letters beyond ASCII keep their case.
class CaseMapping {
 public:
  CaseMapping() : locale_(newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {}
  ~CaseMapping() {
    if (locale_ != nullptr) freelocale(locale_);
  }
  CaseMapping(const CaseMapping&) = delete;
  CaseMapping& operator=(const CaseMapping&) = delete;

  std::uint32_t Upper(std::uint32_t c) const {
    if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
    return locale_ == nullptr ? c : towupper_l(c, locale_);
  }
  std::uint32_t Lower(std::uint32_t c) const {
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return locale_ == nullptr ? c : towlower_l(c, locale_);
  }
  bool HasCase(std::uint32_t c) const { return Upper(c) != c || Lower(c) != c || c == 0xDF; }

 private:
  const locale_t locale_;
};

const CaseMapping& Cases() {
  static const CaseMapping mapping;
  return mapping;
}

// The only common letter whose upper case is two letters.
constexpr std::uint32_t kSharpS = 0xDF;

bool BeginsWord(std::uint32_t before) {
  return IsPythonSpace(before) || before == '-' || before == '(' || before == '{' ||
         before == '[' || before == '<';
}

bool IsUpperAt(Case to, bool first, std::uint32_t before) {
  switch (to) {
    case Case::kUpper: return true;
    case Case::kLower: return false;
    case Case::kCapital: return first;
    case Case::kTitle: return first || !Cases().HasCase(before);
    case Case::kTitleWords: return first || BeginsWord(before);
  }
  return false;
}

// Returns whether Python's repr writes the character itself. It escapes controls, separators except
// the space, and private use. (It also escapes unassigned code points; this does not.)
bool IsPrintable(std::uint32_t c) {
  if (c == ' ') return true;
  if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) return false;
  if (IsPythonSpace(c)) return false;
  const bool format = (c >= 0x0600 && c <= 0x0605) || c == 0x061C || c == 0x06DD || c == 0x070F ||
                      c == 0x180E || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
                      (c >= 0xE0000 && c <= 0xE0FFF);
  const bool private_use = (c >= 0xD800 && c <= 0xF8FF) || c >= 0xF0000;
  return !format && !private_use && (c & 0xFFFE) != 0xFFFE;
}

std::string Escape(std::uint32_t c) {
  constexpr char kHex[] = "0123456789abcdef";
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  std::string text = digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (int digit = digits - 1; digit >= 0; --digit) text += kHex[c >> 4 * digit & 15];
  return text;
}

}  // namespace

MarkedText MapCase(const MarkedText& text, Case to) {
  MarkedText mapped;
  std::string character;
  std::uint32_t before = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = CodePoint(text.bytes(), at);
    const bool upper = IsUpperAt(to, at == 0, before);
    character.clear();
    if (upper && c == kSharpS) {
      character = to == Case::kUpper ? "SS" : "Ss";
    } else {
      AppendCodePoint(upper ? Cases().Upper(c) : Cases().Lower(c), character);
    }
    const std::size_t next = at + CharacterBytes(text.bytes(), at);
    mapped.Append(character, text.OriginOf(at, next));
    before = c;
    at = next;
  }
  return mapped;
}

bool IsAll(LetterCase expected, std::string_view text) {
  bool some = false;
  for (std::size_t at = 0; at < text.size(); at += CharacterBytes(text, at)) {
    const std::uint32_t c = CodePoint(text, at);
    if (!Cases().HasCase(c)) continue;
    const bool is_upper = Cases().Lower(c) != c;
    if (is_upper != (expected == LetterCase::kUpper)) return false;
    some = true;
  }
  return some;
}

bool IsDigit(std::string_view text) {
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return !text.empty();
}

MarkedText QuotedText(const MarkedText& text) {
  const bool has_single = text.bytes().find('\'') != std::string::npos;
  const bool has_double = text.bytes().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  MarkedText quoted(std::string_view(&quote, 1), Origin::kForeign);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = at + CharacterBytes(text.bytes(), at);
    const std::uint32_t c = CodePoint(text.bytes(), at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      quoted.Append("\\", text.OriginOf(at, next));
      quoted.Append(text, at, next);
    } else if (IsPrintable(c)) {
      quoted.Append(text, at, next);
    } else {
      quoted.Append(Escape(c), text.OriginOf(at, next));
    }
    at = next;
  }
  quoted.Append(std::string_view(&quote, 1), Origin::kForeign);
  return quoted;
}

}  // namespace kvcache::jinja
