#include "server/http/url_text.h"

#include <algorithm>
#include <charconv>

namespace kvcache::server {

std::string PercentDecoded(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    unsigned char byte = 0;
    const bool escaped = text[0] == '%' && text.size() > 2;
    const char* const end = text.data() + std::min<std::size_t>(text.size(), 3);
    if (escaped && std::from_chars(text.data() + 1, end, byte, 16).ptr == end) {
      out += static_cast<char>(byte);
      text.remove_prefix(3);
    } else {
      out += text[0];
      text.remove_prefix(1);
    }
  }
  return out;
}

std::optional<std::string> QueryField(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    const std::string_view key = field.substr(0, field.find('='));
    if (PercentDecoded(key) != name) continue;
    return PercentDecoded(field.substr(std::min(field.size(), key.size() + 1)));
  }
  return std::nullopt;
}

}  // namespace kvcache::server
