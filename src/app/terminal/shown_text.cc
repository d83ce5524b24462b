#include "app/terminal/shown_text.h"

#include <utility>

#include "base/strings.h"
#include "base/utf8.h"

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

}  // namespace

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
