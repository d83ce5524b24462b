#include "dialect/scan.h"

#include <array>

namespace kvcache {

FoundMarker FindMarker(std::string_view text, std::initializer_list<std::string_view> markers) {
  FoundMarker found;
  std::size_t held = 0;
  std::size_t size = 0;
  std::size_t index = 0;
  for (const std::string_view marker : markers) {
    const std::size_t at = marker.empty() ? std::string_view::npos : text.find(marker);
    if (at < found.at || (at == found.at && at != std::string_view::npos && marker.size() > size)) {
      found.at = at;
      found.index = index;
      size = marker.size();
    }
    held = std::max(held, Overlap(text, marker));
    ++index;
  }
  found.certain = std::min(found.at, text.size() - held);
  // A longer marker may begin before the one that is found, or with it.
  if (text.size() - held <= found.at) found.at = std::string_view::npos;
  return found;
}

bool JsonScan::Take(char c) {
  if (quoted_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      quoted_ = false;
      return closers_.empty();
    }
    return false;
  }
  if (c == '"') quoted_ = true;
  if (c == '{' || c == '[') closers_ += c == '{' ? '}' : ']';
  if ((c == '}' || c == ']') && !closers_.empty()) {
    closers_.pop_back();
    return closers_.empty();
  }
  return false;
}

std::string JsonScan::Closing() const {
  std::string closing = quoted_ ? (escaped_ ? "\\\"" : "\"") : "";
  closing.append(closers_.rbegin(), closers_.rend());
  return closing;
}

void AppendEscaped(char c, std::string* out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::string_view kShort = "\b\f\n\r\t\"\\";
  constexpr std::string_view kLetters = "bfnrt\"\\";
  const std::size_t known = kShort.find(c);
  if (known != std::string_view::npos) {
    *out += '\\';
    *out += kLetters[known];
  } else if (static_cast<unsigned char>(c) < 0x20) {
    *out += "\\u00";
    *out += kDigits[static_cast<unsigned char>(c) >> 4];
    *out += kDigits[static_cast<unsigned char>(c) & 15];
  } else {
    *out += c;
  }
}

void AppendCharacter(char32_t character, std::string* out) {
  const auto byte = [&](char32_t value) { *out += static_cast<char>(value); };
  if (character < 0x80) return byte(character);
  if (character < 0x800) {
    byte(0xc0 | (character >> 6));
  } else if (character < 0x10000) {
    byte(0xe0 | (character >> 12));
    byte(0x80 | ((character >> 6) & 0x3f));
  } else {
    byte(0xf0 | (character >> 18));
    byte(0x80 | ((character >> 12) & 0x3f));
    byte(0x80 | ((character >> 6) & 0x3f));
  }
  byte(0x80 | (character & 0x3f));
}

}  // namespace kvcache
