#include "base/strings.h"

#include <iterator>

#include "base/utf8.h"

namespace kvcache {
namespace {

void AppendHex(std::string& out, unsigned char byte) {
  constexpr char kHex[] = "0123456789abcdef";
  out += "\\x";
  out += kHex[byte >> 4];
  out += kHex[byte & 15];
}

void AppendPrintable(std::string& out, std::string_view text) {
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte < 0x7f) {
      out += character;
    } else {
      AppendHex(out, byte);
    }
  }
}

bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::string Quoted(std::string_view text, std::size_t max_bytes) {
  std::string out = "'";
  if (text.size() <= max_bytes) {
    AppendPrintable(out, text);
  } else {
    AppendPrintable(out, text.substr(0, max_bytes / 2));
    out += "...";
    AppendPrintable(out, text.substr(text.size() - max_bytes / 2));
  }
  return out + "'";
}

std::string OneLine(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const int length = CharacterLength(text);
    const std::string_view character =
        text.substr(0, length > 0 ? static_cast<std::size_t>(length) : 1);
    if (length <= 0 || IsControl(character)) {
      for (const char c : character) AppendHex(out, static_cast<unsigned char>(c));
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

std::string HexText(std::uint64_t number) {
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; number >>= 4)
    text[i] = "0123456789abcdef"[number & 15];
  return text;
}

std::string WithThousands(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string HumanBytes(std::int64_t bytes) {
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return StrCat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1024.0;
  char digits[32];
  const auto end =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::fixed, 1).ptr;
  return StrCat(std::string_view(digits, static_cast<std::size_t>(end - digits)), ' ',
                kUnits[unit]);
}

}  // namespace kvcache
