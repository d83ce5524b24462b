#include "app/terminal/shown_text.h"

#include <utility>

#include "base/strings.h"

namespace kvcache::app {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Returns the escape for a character that reorders the text around it: U+202A to U+202E and U+2066
// to U+2069, in UTF-8 E2 80 AA to AE and E2 81 A6 to A9. Empty for every other character.
std::string BidiEscape(std::string_view character) {
  if (!character.starts_with("\xe2\x80") && !character.starts_with("\xe2\x81")) return {};
  constexpr char kHex[] = "0123456789abcdef";
  const auto last = static_cast<unsigned char>(character[2]);
  const bool is_first_block = character[1] == '\x80';
  const bool reorders =
      is_first_block ? last >= 0xaa && last <= 0xae : last >= 0xa6 && last <= 0xa9;
  if (!reorders) return {};
  const int low = (is_first_block ? 0x00 : 0x40) + (last & 0x3f);
  return {'\\', 'u', '2', '0', kHex[low >> 4], kHex[low & 15]};
}

struct Lead {
  int length;               // of the character
  unsigned char low, high;  // the range of its second byte
};

// Table 3-7 of the Unicode standard.
Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2 || byte > 0xf4) return {-1, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  return {4, 0x80, static_cast<unsigned char>(byte == 0xf4 ? 0x8f : 0xbf)};
}

}  // namespace

int CharacterLength(std::string_view text) {
  const Lead lead = LeadOf(static_cast<unsigned char>(text[0]));
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) return 0;
    const auto byte = static_cast<unsigned char>(text[static_cast<std::size_t>(i)]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return -1;
  }
  return lead.length;
}

std::string ShownText::Show(std::string_view text, bool at_end) {
  std::string out;
  while (!text.empty()) {
    const int length = CharacterLength(text);
    const bool cut = length == 0 || text == "\r";
    if (cut && !at_end) break;
    const std::size_t bytes = length > 0 ? static_cast<std::size_t>(length) : 1;
    const std::string_view character = text.substr(0, bytes);
    if (length <= 0) {
      out += kReplacement;
    } else if (character == "\n" || character == "\t") {
      out += character;
    } else if (!text.starts_with("\r\n")) {
      const std::string escape = BidiEscape(character);
      out += escape.empty() ? OneLine(character) : escape;
    }
    text.remove_prefix(bytes);
  }
  held_ = text;
  return out;
}

std::string ShownText::Add(std::string_view piece) {
  return Show(std::exchange(held_, {}) + std::string(piece), false);
}

std::string ShownText::End() {
  return Show(std::exchange(held_, {}), true);
}

std::string Shown(std::string_view text) {
  ShownText shown;
  std::string out = shown.Add(text);
  return out += shown.End();
}

}  // namespace kvcache::app
