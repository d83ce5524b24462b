// The server: routes on an HTTP server, and the texts of one model.
//
// Thread safety: one thread at a time, except that requests come from anywhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "server/answer.h"
#include "server/http_server.h"

namespace kvcache::server {

struct ServerOptions {
  HttpOptions http{};
  std::int64_t most_running = 512;  // requests at a time, waiting ones included
  // Requests that wait to be read, and the bytes of their bodies.
  std::size_t most_queued = 256;
  std::size_t queued_bytes = std::size_t{64} << 20;
};

class Server {
 public:
  // Starts to serve `engine`, which must outlive the server. Errors: those of HttpServer::Start and
  // TextService::Make.
  static Result<std::unique_ptr<Server>> Start(Engine& engine, ServedModel model,
                                               const ServerOptions& options);
  // Ends all requests.
  virtual ~Server() = default;
  // Takes no more connections and requests, waits for those that run, for at most `most`, and ends the
  // others with status 503 or an error event.
  virtual void Stop(std::chrono::milliseconds most) = 0;
  virtual std::uint16_t port() const = 0;
  virtual const TextService& service() const = 0;
};

}  // namespace kvcache::server
