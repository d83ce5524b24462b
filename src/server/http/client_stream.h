// A client's bytes, plain or through TLS.
//
// Thread safety: the I/O thread.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>

namespace kvcache::server {

class ClientStream {
 public:
  using ErrorCode = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;

  // `tls` is null for a plain stream, and must outlive this.
  ClientStream(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls == nullptr) return;
    tls_.emplace(socket_, *tls);
    // OpenSSL frees the buffers of a connection that says nothing.
    SSL_set_mode(tls_->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  }

  bool is_tls() const { return tls_.has_value(); }
  Socket& socket() { return socket_; }

  // Agrees on keys. REQUIRES: TLS.
  template <typename Done>
  void Handshake(Done done) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(done));
  }
  // REQUIRES: after the handshake of TLS, as WriteAll and EndWriting.
  template <typename Buffer, typename Done>
  void ReadSome(Buffer buffer, Done done) {
    if (tls_) return tls_->async_read_some(buffer, std::move(done));
    socket_.async_read_some(buffer, std::move(done));
  }
  template <typename Buffer, typename Done>
  void WriteAll(Buffer buffer, Done done) {
    if (tls_) return boost::asio::async_write(*tls_, buffer, std::move(done));
    boost::asio::async_write(socket_, buffer, std::move(done));
  }
  // Says that nothing more is written.
  template <typename Done>
  void EndWriting(Done done) {
    if (tls_) return tls_->async_shutdown(std::move(done));
    ErrorCode ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void Close() {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace kvcache::server
