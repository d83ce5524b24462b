#include "pull/url.h"

#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::pull {
namespace {

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~/").find(c) != std::string_view::npos;
}

// Returns an address without its user and its query, which may be secrets.
std::string WithoutSecrets(std::string_view text) {
  std::string shown(text.substr(0, text.find_first_of("?#")));
  const std::size_t user = shown.rfind('@');
  const std::size_t scheme = shown.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  if (user != std::string::npos && user >= begin) shown.erase(begin, user + 1 - begin);
  return shown;
}

}  // namespace

Result<Url> ParseUrl(std::string_view text) {
  const auto wrong = [shown = WithoutSecrets(text)](std::string_view rule) {
    return InvalidArgument(StrCat("the address ", Quoted(shown), " ", rule));
  };
  const auto is_bad = [](char c) { return c <= ' ' || c >= '\x7f' || c == '\\'; };
  if (std::any_of(text.begin(), text.end(), is_bad))
    return wrong("has a space or another such byte");
  Url url;
  for (const std::string_view scheme : {"http", "https"}) {
    const std::string head = StrCat(scheme, "://");
    if (!text.starts_with(head)) continue;
    url.scheme = scheme;
    text.remove_prefix(head.size());
  }
  if (url.scheme.empty()) return wrong("must begin with http:// or https://");
  const std::size_t end = std::min(text.find_first_of("/?#"), text.size());
  url.host = text.substr(0, end);
  if (url.host.empty()) return wrong("has no host");
  if (url.host.find('@') != std::string::npos) return wrong("has a user; must have none");
  url.path = text.substr(end);
  url.path.resize(std::min(url.path.find('#'), url.path.size()));
  if (!url.path.starts_with('/')) url.path.insert(0, "/");
  return url;
}

Result<Url> ResolveUrl(const Url& base, std::string_view location) {
  const std::size_t scheme = location.find("://");
  if (scheme < location.find_first_of("/?#")) return ParseUrl(location);
  if (scheme != std::string_view::npos && location.find(':') == scheme) return ParseUrl(location);
  if (location.starts_with("//")) return ParseUrl(StrCat(base.scheme, ":", location));
  if (location.starts_with('/')) return ParseUrl(StrCat(base.Origin(), location));
  const std::string path = base.path.substr(0, base.path.find('?'));
  return ParseUrl(StrCat(base.Origin(), path.substr(0, path.rfind('/') + 1), location));
}

std::string PlaceOf(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  return std::string(url.substr(0, url.find_first_of("?#")));
}

std::string EscapedPath(std::string_view path) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string text;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsPlain(c)) {
      text += c;
    } else {
      text += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text;
}

}  // namespace kvcache::pull
