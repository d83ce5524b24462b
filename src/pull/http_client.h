// One exchange with an HTTP server: what a pull needs of a network. Redirects, tokens and retries are
// the fetcher's (fetcher.h), so tests replace this by a stand-in.
//
// Thread safety: a client is one thread's at a time; the others are values.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::pull {

struct HttpHead {
  int status = 0;
  bool from_this_machine = false;  // the other end of the connection; a proxy does not count
  std::map<std::string, std::string> headers{};  // names in lower case; of equal names the last

  // Returns a header's value; empty: there is none.
  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

struct HttpRequest {
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers{};
  // Whether the host may resolve to this machine (this_machine.h); else the exchange ends with kInvalidArgument.
  bool may_reach_this_machine = true;
  int max_seconds = 0;  // from the request to the last byte; 0: any time
};

// What takes an answer. An error ends the exchange, which returns the error.
struct HttpSink {
  std::function<Status(const HttpHead& head)> on_head;
  std::function<Status(std::span<const std::byte> bytes)> on_bytes;
};

class HttpClient {
 public:
  virtual ~HttpClient() = default;
  // Sends a GET request. Calls `sink.on_head` once, then `sink.on_bytes` for the parts of the body.
  // Errors: kIo: no connection, a break, no bytes for too long, or max_seconds; kInvalidArgument: this machine must
  // not be reached; kCancelled; those of the sink.
  virtual Status Get(const HttpRequest& request, const HttpSink& sink) = 0;
};

struct CurlOptions {
  int stall_seconds = 60;             // without at least a KiB each second
  std::function<bool()> cancelled{};  // is asked about once a second; empty: never
};

// Returns a client over libcurl. It uses the proxies of the usual environment variables, but not for a host that names
// this machine, and SSL_CERT_FILE instead of the system's certificates. Errors: kInternal.
Result<std::unique_ptr<HttpClient>> MakeCurlClient(CurlOptions options);

}  // namespace kvcache::pull
