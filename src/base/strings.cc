#include "base/strings.h"

#include <iterator>

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

// Bytes of the control character that `text` begins with; 0: it begins with another.
std::size_t ControlLength(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  const bool second_half = text.size() > 1 && byte(0) == 0xc2 && (byte(1) & 0xe0) == 0x80;
  return second_half ? 2 : 0;
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
    const std::size_t control = ControlLength(text);
    for (std::size_t i = 0; i < control; ++i) AppendHex(out, static_cast<unsigned char>(text[i]));
    if (control == 0) out += text.front();
    text.remove_prefix(control == 0 ? 1 : control);
  }
  return out;
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
