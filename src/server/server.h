// The server: routes on an HTTP server, and the texts of one model.
//
// Thread safety: one thread at a time, except that requests come from anywhere.
#pragma once

#include <cstdint>
#include <memory>

#include "server/answer.h"
#include "server/http_server.h"

namespace kvcache::server {

struct ServerOptions {
  HttpOptions http{};
  std::int64_t most_running = 512;  // requests at a time, waiting ones included
};

class Server {
 public:
  // Starts to serve `engine`, which must outlive the server. Errors: those of HttpServer::Start and
  // TextService::Make.
  static Result<std::unique_ptr<Server>> Start(Engine& engine, ServedModel model,
                                               const ServerOptions& options);
  // Ends all requests.
  virtual ~Server() = default;
  virtual std::uint16_t port() const = 0;
  virtual const TextService& service() const = 0;
};

}  // namespace kvcache::server
