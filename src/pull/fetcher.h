// Fetches from registries and hubs: follows redirects, and answers a registry that asks for a token.
//
// A redirect may lead to another host, since blobs lie in stores of their own, but not from https to
// http, to another scheme, or in a circle. Only a host that the user named, and what answers from this machine, may
// lead to this machine: by name, and by what a name resolves to. A token goes only to the host that it is for.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "pull/http_client.h"
#include "pull/url.h"

namespace kvcache::pull {

class Fetcher {
 public:
  // `client` must outlive this. `max_seconds`: for a text with its redirects and tokens.
  explicit Fetcher(HttpClient& client, int max_seconds = 600)
      : client_(client), max_seconds_(max_seconds) {}

  using Headers = std::vector<std::pair<std::string, std::string>>;

  // Where the last answer came from, after redirects, and its status; 0: there was none.
  const Url& last() const { return last_; }
  int last_status() const { return last_status_; }

  // Names a host that the user chose, with its port: it may be this machine.
  void Trust(std::string host) { trusted_.insert(std::move(host)); }

  // Sends this token to a host from now on.
  void UseToken(std::string host, std::string token);

  // Gets an answer. `sink` sees the last head only, with a status of 200 or 206. Errors: those of the
  // client and the sink; kNotFound: 404; kIo: 408, 429 and 5xx, which may pass; kInvalidArgument: a
  // redirect that is refused; kUnsupported: every other status. Messages begin with host and path.
  Status Get(const std::string& url, const Headers& headers, const HttpSink& sink);

  // The same for an answer of at most `max_bytes` (else kCorrupt), within `max_seconds` (else kIo).
  Result<std::string> GetText(const std::string& url, const Headers& headers,
                              std::size_t max_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  // What is asked for, wherever redirects lead.
  struct Wanted {
    const Headers& headers;
    const HttpSink& sink;
    Clock::time_point end{};         // of all exchanges; the clock's zero: none
    bool from_this_machine = false;  // who names the address
  };

  // Follows redirects. Returns the challenge of a server that asks for a token (401), or nothing.
  Result<std::string> Follow(const std::string& url, const Wanted& wanted);
  Status GetUntil(const std::string& url, const Wanted& wanted);
  // Sends one request. Returns the error of the exchange, and sets the answer's status.
  Status Exchange(const HttpRequest& request, const HttpSink& sink, HttpHead* head, Status* answer);
  Result<Url> Redirected(const Url& from, const HttpHead& head, std::vector<std::string>* seen);
  Status TakeToken(const Url& asker, const std::string& challenge, const Wanted& wanted);
  std::string TokenFor(const Url& url) const;

  HttpClient& client_;
  const int max_seconds_;
  std::vector<std::pair<std::string, std::string>> tokens_;  // host and token
  std::set<std::string> trusted_;                            // hosts that may be this machine
  Url last_{};
  int last_status_ = 0;
  bool last_is_here_ = false;  // the last answer came from this machine
};

}  // namespace kvcache::pull
