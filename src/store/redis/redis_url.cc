#include "store/redis/redis_url.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::store {
namespace {

constexpr std::string_view kScheme = "redis://";
constexpr const char* kForm = "; expected redis://[[user]:password@]host[:port][/db]";

int HexDigit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

Result<std::string> Decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return InvalidArgument(StrCat("a Redis URL has '%' without two hexadecimal digits", kForm));
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

Result<int> ParseNumber(std::string_view text, int max, std::string_view what) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > max) {
    return InvalidArgument(
        StrCat("a Redis URL has the ", what, " ", Quoted(text), "; must be a number up to ", max));
  }
  return number;
}

}  // namespace

std::string TextOf(const RedisAddress& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return StrCat(is_v6 ? "[" : "", address.host, is_v6 ? "]" : "", ":", address.port);
}

bool IsRedisHost(std::string_view text) {
  constexpr std::size_t kMaxLetters = 255;
  const auto is_of_a_host = [](char c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return is_letter || (c >= '0' && c <= '9') ||
           std::string_view(".-_:%").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kMaxLetters &&
         std::all_of(text.begin(), text.end(), is_of_a_host);
}

Result<RedisAddress> ParseRedisAddress(std::string_view text) {
  RedisAddress address;
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      return InvalidArgument(StrCat("a Redis URL has '[' without ']'", kForm));
    }
    address.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    // Servers announce IPv6 addresses without brackets: the last colon is the port's.
    const std::size_t colon = text.rfind(':');
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon);
  }
  if (address.host.empty()) return InvalidArgument(StrCat("a Redis URL has no host", kForm));
  if (!IsRedisHost(address.host)) {
    return InvalidArgument(StrCat("a Redis URL has the host ", Quoted(address.host),
                                  "; must be a name or an address"));
  }
  if (port.empty()) return address;
  if (!port.starts_with(':')) {
    return InvalidArgument(StrCat("a Redis URL has ", Quoted(port), " after its host", kForm));
  }
  KVCACHE_ASSIGN_OR_RETURN(address.port, ParseNumber(port.substr(1), 65535, "port"));
  return address;
}

std::string RedisUrl::Name() const {
  return StrCat(kScheme, TextOf(address), database > 0 ? StrCat("/", database) : std::string());
}

Result<RedisUrl> ParseRedisUrl(std::string_view text) {
  if (text.starts_with("rediss://")) {
    return InvalidArgument(
        "rediss:// (TLS) is not built in; run a TLS tunnel, such as stunnel, and give its local "
        "address as redis://");
  }
  if (!text.starts_with(kScheme)) return InvalidArgument(StrCat("not a Redis URL", kForm));
  text.remove_prefix(kScheme.size());
  RedisUrl url;
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = text.substr(0, at);
    const std::size_t colon = login.find(':');
    if (colon == std::string_view::npos) {
      return InvalidArgument(StrCat("a Redis URL has a user without a password", kForm));
    }
    KVCACHE_ASSIGN_OR_RETURN(url.user, Decode(login.substr(0, colon)));
    KVCACHE_ASSIGN_OR_RETURN(url.password, Decode(login.substr(colon + 1)));
    text.remove_prefix(at + 1);
  }
  if (const std::size_t slash = text.find('/'); slash != std::string_view::npos) {
    const std::string_view database = text.substr(slash + 1);
    if (!database.empty()) {
      KVCACHE_ASSIGN_OR_RETURN(url.database, ParseNumber(database, 1 << 20, "database"));
    }
    text = text.substr(0, slash);
  }
  KVCACHE_ASSIGN_OR_RETURN(url.address, ParseRedisAddress(text));
  return url;
}

}  // namespace kvcache::store
