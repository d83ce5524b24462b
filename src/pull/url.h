// Addresses on the web: http and https only.
//
// Thread safety: values and free functions.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache::pull {

struct Url {
  std::string scheme;  // "http" or "https"
  std::string host;    // with the port
  std::string path;    // from the slash on, with the query

  std::string Origin() const { return scheme + "://" + host; }
  std::string Text() const { return Origin() + path; }
};

// Errors: kInvalidArgument: another scheme, a user or password, or a character that no address has.
Result<Url> ParseUrl(std::string_view text);

// Returns where `location`, a redirect's, leads from `base`.
Result<Url> ResolveUrl(const Url& base, std::string_view location);

// Returns the host and the path for messages, without the query, which may have secrets.
std::string PlaceOf(std::string_view url);

// Returns a path of a file with what addresses do not take as %NN. Slashes stay.
std::string EscapedPath(std::string_view path);

}  // namespace kvcache::pull
