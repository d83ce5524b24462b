#include "dialect/argument_reader.h"

namespace kvcache {
namespace {

// Returns the value of four digits; -1: they are none.
int HexValue(std::string_view digits) {
  int value = 0;
  for (const char c : digits) {
    const bool digit = c >= '0' && c <= '9';
    const char low = static_cast<char>(c | 0x20);
    if (!digit && (low < 'a' || low > 'f')) return -1;
    value = value * 16 + (digit ? c - '0' : low - 'a' + 10);
  }
  return value;
}

}  // namespace

bool JsonArguments::Read(std::string_view& text, bool last, std::string* out) {
  if (state_ == State::kBefore) {
    SkipSpaces(text);
    if (text.empty()) return false;
    state_ = text[0] == '{' ? State::kObject : text[0] == '"' ? State::kText : State::kWord;
    if (state_ == State::kText) text.remove_prefix(1);
  }
  if (state_ == State::kText) return InText(text, out);
  if (state_ == State::kWord) {
    const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz");
    if (end == std::string_view::npos && !last) return false;
    const std::size_t size = std::min(end, text.size());
    if (text.substr(0, size) == "null") text.remove_prefix(size);
    *out += "{}";
    return true;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool ends = text[i] == kEdge || scan_.Take(text[i]);
    if (!ends) continue;
    const std::size_t size = text[i] == kEdge ? i : i + 1;
    *out += text.substr(0, size);
    text.remove_prefix(size);
    return true;
  }
  *out += text;
  text = {};
  return false;
}

void JsonArguments::Put(std::string_view text, std::string* out) {
  for (const char c : text) {
    if (empty_ && kWhiteSpace.find(c) != std::string_view::npos) continue;
    empty_ = false;
    (void)scan_.Take(c);
    *out += c;
  }
}

bool JsonArguments::InText(std::string_view& text, std::string* out) {
  while (!text.empty()) {
    if (text[0] == '\\') {
      if (!TakeEscape(text, out)) return false;
      continue;
    }
    const std::size_t end = text.find_first_of("\"\\\xff");
    Put(text.substr(0, end), out);
    text.remove_prefix(std::min(end, text.size()));
    if (text.empty()) return false;
    if (text[0] == '\\') continue;
    if (text[0] == '"') text.remove_prefix(1);
    if (empty_) *out += "{}";
    return true;
  }
  return false;
}

bool JsonArguments::TakeEscape(std::string_view& text, std::string* out) {
  if (text.size() < 2) return false;
  if (text[1] != 'u') {
    constexpr std::string_view kLetters = "bfnrt";
    const std::size_t at = kLetters.find(text[1]);
    Put(at == std::string_view::npos ? text.substr(1, 1)
                                     : std::string_view("\b\f\n\r\t").substr(at, 1),
        out);
    text.remove_prefix(2);
    return true;
  }
  if (text.size() < 6) return false;
  const int value = HexValue(text.substr(2, 4));
  text.remove_prefix(6);
  if (value < 0) return true;
  char32_t character = static_cast<char32_t>(value);
  if (character >= 0xd800 && character < 0xdc00) {
    high_ = character;
    return true;
  }
  if (character >= 0xdc00 && character < 0xe000) {
    character = high_ == 0 ? 0xfffd : 0x10000 + ((high_ - 0xd800) << 10) + (character - 0xdc00);
  }
  high_ = 0;
  std::string bytes;
  AppendCharacter(character, &bytes);
  Put(bytes, out);
  return true;
}

}  // namespace kvcache
