#include "server/http/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "server/http/http_connection.h"

namespace kvcache::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// Belongs to the function that waits for a client, and keeps a flag true while that function lives. Without
// memory the function is destroyed and never called, and then the flag is false too.
class Accepting {
 public:
  explicit Accepting(bool& flag) : flag_(&flag) { flag = true; }
  Accepting(Accepting&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  Accepting& operator=(Accepting&&) = delete;
  ~Accepting() { End(); }
  void End() {
    if (flag_ != nullptr) *std::exchange(flag_, nullptr) = false;
  }

 private:
  bool* flag_;
};

class SocketServer final : public HttpServer {
 public:
  SocketServer(const HttpOptions& options, HttpHandler& handler)
      : sockets_(new Sockets{.options = options, .handler = handler}),
        acceptor_(sockets_->io),
        retry_(sockets_->io) {}

  ~SocketServer() override {
    try {
      asio::post(sockets_->io, [this] { CloseAll(); });
      if (thread_.joinable()) thread_.join();
    } catch (const std::exception&) {
      std::terminate();  // without memory for the post the thread would never end
    }
  }

  // On the thread of the sockets.
  void CloseAll() {
    work_.reset();
    StopAll();
    for (const auto& weak : connections_) {
      if (const auto connection = weak.lock()) connection->Close();
    }
  }

  void StopAccepting() override {
    asio::post(sockets_->io, [this] { StopAll(); });
  }

  bool WaitUntilSent(std::chrono::milliseconds max) override {
    const auto end = Clock::now() + max;
    while (CountUnsent() > 0) {
      if (Clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  Status ReloadCertificate() override {
    KVCACHE_ASSIGN_OR_RETURN(auto read, ReadCertificate());
    if (!read) return Status::Ok();
    // Connections keep what they began with.
    const auto shared = std::make_shared<asio::ssl::context>(std::move(*read));
    asio::post(sockets_->io, [this, shared] { sockets_->tls.emplace(std::move(*shared)); });
    return Status::Ok();
  }

  Status Listen() {
    KVCACHE_ASSIGN_OR_RETURN(sockets_->tls, ReadCertificate());
    error_code error;
    const auto address = asio::ip::make_address(sockets_->options.address, error);
    if (error) {
      return InvalidArgument(
          StrCat("the address ", Quoted(sockets_->options.address), " is not an IP address"));
    }
    const tcp::endpoint endpoint(address, sockets_->options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return {StatusCode::kIo, StrCat("cannot listen on ", sockets_->options.address, ":",
                                      sockets_->options.port, ": ", error.message())};
    }
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([this] { Run(); });
    return Status::Ok();
  }

  std::uint16_t port() const override { return port_; }

 private:
  // Returns none without TLS.
  Result<std::optional<asio::ssl::context>> ReadCertificate() const {
    const HttpOptions& options = sockets_->options;
    using asio::ssl::context;
    std::optional<context> made;
    if (options.tls_certificate.empty() && options.tls_key.empty()) return made;
    if (options.tls_certificate.empty() || options.tls_key.empty()) {
      return InvalidArgument("TLS needs both a certificate and its key");
    }
    context& tls = made.emplace(context::tls_server);
    error_code error;
    const auto wrong = [&](const std::string& file, const char* rule) {
      return InvalidArgument(StrCat(file, ": ", rule, ": ", error.message()));
    };
    tls.set_options(context::default_workarounds | context::no_tlsv1 | context::no_tlsv1_1, error);
    // A key with a password would be asked for on the terminal.
    tls.set_password_callback([](auto...) { return std::string(); }, error);
    tls.use_certificate_chain_file(options.tls_certificate, error);
    if (error) return wrong(options.tls_certificate, "not a certificate in PEM");
    tls.use_private_key_file(options.tls_key, context::pem, error);
    if (error)
      return wrong(options.tls_key, "not the certificate's key in PEM, without a password");
    return made;
  }

  void StopAll() {
    error_code ignored;
    sockets_->stopping = true;
    acceptor_.close(ignored);
    retry_.cancel();
    for (const auto& weak : connections_) {
      if (const auto connection = weak.lock()) connection->Stop();
    }
  }

  std::size_t CountUnsent() {
    auto count = std::make_shared<std::promise<std::size_t>>();
    auto counted = count->get_future();
    asio::post(sockets_->io, [this, count] {
      count->set_value(static_cast<std::size_t>(
          std::count_if(connections_.begin(), connections_.end(), [](const auto& weak) {
            const auto connection = weak.lock();
            return connection && connection->HasAnswersToSend();
          })));
    });
    return counted.get();
  }

  void Accept() {
    if (sockets_->accepting) return;
    acceptor_.async_accept([this, accepting = Accepting(sockets_->accepting)](
                               const error_code& error, tcp::socket socket) mutable {
      accepting.End();
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater();  // no descriptor is free
      Accept();
      if (sockets_->open < sockets_->options.connections) {
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        const auto connection = MakeConnection(sockets_, std::move(socket));
        Remember(connection);
        connection->Start();
      }
    });
  }

  // A function that runs out of memory ends; the others go on, and so does accepting.
  void Run() {
    while (true) {
      try {
        if (acceptor_.is_open()) Accept();
        sockets_->io.run();
        return;
      } catch (const std::exception&) {
        continue;
      }
    }
  }

  void AcceptLater() {
    retry_.expires_after(std::chrono::milliseconds(50));
    retry_.async_wait([this](const error_code& error) {
      if (!error) Accept();
    });
  }

  void Remember(const std::shared_ptr<Connection>& connection) {
    if (connections_.size() >= 2 * sockets_->open + 16) {
      std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
    }
    connections_.push_back(connection);
  }

  std::shared_ptr<Sockets> sockets_;
  // The thread runs until the end, also without connections.
  asio::executor_work_guard<asio::io_context::executor_type> work_{sockets_->io.get_executor()};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                      HttpHandler& handler) {
  auto server = std::make_unique<SocketServer>(options, handler);
  KVCACHE_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace kvcache::server
