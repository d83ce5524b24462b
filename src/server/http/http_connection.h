// One client of the server: its requests, its answers and its time. All functions run on the thread of
// the sockets.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>
#include <optional>

#include "server/http/http_server.h"

namespace kvcache::server {

// What all connections share.
struct Sockets {
  const HttpOptions options;
  HttpHandler& handler;
  std::optional<boost::asio::ssl::context> tls{};  // none: plain HTTP
  bool accepting = false;  // a client is waited for; before io, whose functions set it
  boost::asio::io_context io{1};
  std::size_t open = 0;   // connections
  bool stopping = false;  // each connection ends with its answer
};

class Connection {
 public:
  virtual ~Connection() = default;
  virtual void Start() = 0;
  // Ends the connection when it has nothing to answer.
  virtual void Stop() = 0;
  virtual void Close() = 0;
  virtual bool HasAnswersToSend() const = 0;
};

// The connection lives until its socket is closed: what waits for the socket keeps it.
std::shared_ptr<Connection> MakeConnection(std::shared_ptr<Sockets> sockets,
                                           boost::asio::ip::tcp::socket socket);

}  // namespace kvcache::server
