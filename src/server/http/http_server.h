// An HTTP/1.1 server with one I/O thread. Its interface names no library; only http_server.cc and
// http_connection.* know Boost.Asio, whose headers take long to compile.
//
// A read is always pending, so a client that leaves is noticed at once. Output that a client does not
// read is bounded: a client that falls too far behind is disconnected.
//
// Thread safety: HttpReply from any thread; HttpServer from the thread that made it. The handler and
// on_gone are called on the I/O thread and must return soon.
// Limits and design: docs/server.md, docs/design/server.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "server/http/http_request_reader.h"

namespace kvcache::server {

struct HttpOptions {
  std::string address = "127.0.0.1";  // an IP address
  std::uint16_t port = 0;             // 0: any free port
  std::size_t header_bytes = std::size_t{64} << 10;
  std::size_t body_bytes = std::size_t{16} << 20;
  std::size_t output_bytes = std::size_t{4} << 20;  // that one client has not read yet
  std::size_t connections = 8192;
  int receive_seconds = 60;  // for a whole request, from its first byte
  int idle_seconds = 75;     // between two requests
  int send_seconds = 60;     // without a byte that the client takes
  int ping_seconds = 30;     // between the comments of a silent event stream
  // PEM files of a certificate with those that it depends on, and of its key; both empty: plain HTTP.
  std::string tls_certificate{}, tls_key{};
  // Origins whose pages may read answers (CORS); "*": all.
  std::vector<std::string> allowed_origins{};
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The answer to one request: Send, or Begin, Write … and End. Calls after the end do nothing. If it is
// destroyed before, the request gets status 500, or its connection is closed.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void Send(int status, std::string body, HttpHeaders headers = {}) = 0;  // JSON by default
  virtual void Begin(std::string content_type) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void End() = 0;
  // Calls `gone` when the client leaves before the end; at once if it has left. May be called again with
  // another function.
  virtual void OnGone(std::function<void()> gone) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // Returns the body for a request that was refused before it was complete. `path` may be empty.
  virtual std::string ErrorBody(std::string_view path, int status, std::string_view message) = 0;
};

class HttpServer {
 public:
  // Listens and starts the I/O thread. `handler` must outlive the server and its replies. Errors:
  // kInvalidArgument for the address, the certificate and its key; kIo if the port cannot be taken.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                   HttpHandler& handler);
  // Closes all connections and ends the thread.
  virtual ~HttpServer() = default;
  virtual std::uint16_t port() const = 0;
  // Reads the files of the certificate and its key again, for connections that begin from now on. If they cannot
  // be used, the ones before stay. Errors: kInvalidArgument.
  virtual Status ReloadCertificate() = 0;
  // Accepts no more connections, and closes each as soon as its request is answered.
  virtual void StopAccepting() = 0;
  // Waits until all answers are sent, for at most `max`. Returns whether they are.
  virtual bool WaitUntilSent(std::chrono::milliseconds max) = 0;
};

}  // namespace kvcache::server
