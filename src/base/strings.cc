#include "base/strings.h"

namespace kvcache {
namespace {

void AppendPrintable(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte < 0x7f) {
      out += character;
      continue;
    }
    out += "\\x";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
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

}  // namespace kvcache
