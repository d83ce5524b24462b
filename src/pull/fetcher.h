// Fetches from registries and hubs: follows redirects, and answers a registry that asks for a token.
//
// A redirect may lead to another host, since blobs lie in stores of their own, but not from https to
// http, to another scheme, or in a circle. A token goes only to the host that it is for.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "pull/http_client.h"
#include "pull/url.h"

namespace kvcache::pull {

class Fetcher {
 public:
  // `client` must outlive this.
  explicit Fetcher(HttpClient& client) : client_(client) {}

  using Headers = std::vector<std::pair<std::string, std::string>>;

  // Where the last answer came from, after redirects.
  const Url& last() const { return last_; }

  // Sends this token to a host from now on.
  void UseToken(std::string host, std::string token);

  // Gets an answer. `sink` sees the last head only, with a status of 200 or 206. Errors: those of the
  // client and the sink; kNotFound: 404; kIo: 408, 429 and 5xx, which may pass; kInvalidArgument: a
  // redirect that is refused; kUnsupported: every other status. Messages begin with host and path.
  Status Get(const std::string& url, const Headers& headers, const HttpSink& sink);

  // The same for an answer of at most `max_bytes` (else kCorrupt).
  Result<std::string> GetText(const std::string& url, const Headers& headers,
                              std::size_t max_bytes);

 private:
  // Follows redirects. Returns the challenge of a server that asks for a token (401), or nothing.
  Result<std::string> Follow(const std::string& url, const Headers& headers, const HttpSink& sink);
  Result<Url> Redirected(const Url& from, const HttpHead& head, std::vector<std::string>* seen);
  Status TakeToken(const Url& asker, const std::string& challenge);
  std::string TokenFor(const Url& url) const;

  HttpClient& client_;
  std::vector<std::pair<std::string, std::string>> tokens_;  // host and token
  Url last_{};
};

}  // namespace kvcache::pull
