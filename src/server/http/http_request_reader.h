// Takes HTTP/1.0 and 1.1 requests out of the bytes of a connection, in whatever pieces they arrive. Its
// interface names no library; only the .cc file knows Boost.Beast.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace kvcache::server {

struct HttpRequest {
  std::string method;
  std::string path;                    // without the query
  std::string query;                   // without "?"
  std::string host;                    // the Host header
  std::string authorization, api_key;  // the headers Authorization and X-Api-Key
  std::string origin, asked_headers;   // Origin and Access-Control-Request-Headers
  std::string body;
  bool from_loopback = false;  // the connection knows
};

class HttpRequestReader {
 public:
  // Bytes of the largest head and of the largest body.
  HttpRequestReader(std::size_t header_bytes, std::size_t body_bytes);
  ~HttpRequestReader();
  HttpRequestReader(const HttpRequestReader&) = delete;
  HttpRequestReader& operator=(const HttpRequestReader&) = delete;

  enum class Outcome : std::uint8_t {
    kMore,      // the rest of the request has not arrived
    kContinue,  // the client waits for "100 Continue"; then call again
    kRequest,   // request() is complete
    kRefused,   // status() and message() say why; nothing more can be read from the connection
  };
  // Takes bytes of the next request from the front of `inbox`.
  Outcome Read(std::string& inbox);

  // Returns whether a part of a request was seen, and not all of it.
  bool receiving() const { return parser_ != nullptr; }

  // Of the last request.
  HttpRequest& request() { return request_; }
  bool keeps_alive() const { return keeps_alive_; }
  bool head_only() const { return head_only_; }
  bool is_http_1_0() const { return is_http_1_0_; }

  // Of a refusal. request() has the path if it is known.
  int status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  struct Parser;

  Outcome ReadHead(std::string& inbox);
  Outcome CheckHead();
  Outcome ReadBody(std::string& inbox);
  Outcome Complete();
  Outcome Refuse(int status, std::string message);
  Outcome RefuseBody();

  const std::size_t header_bytes_;
  const std::size_t body_bytes_;
  std::unique_ptr<Parser> parser_;
  HttpRequest request_;
  bool keeps_alive_ = false, head_only_ = false, is_http_1_0_ = false;
  int status_ = 0;
  std::string message_;
};

}  // namespace kvcache::server
