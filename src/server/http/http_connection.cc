#include "server/http/http_connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/http/client_stream.h"
#include "server/http/cors.h"
#include "server/http/http_request_reader.h"

namespace kvcache::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

class TcpConnection;

// Forwards calls from any thread to the connection's, for one of its requests.
class SocketReply final : public HttpReply {
 public:
  SocketReply(std::shared_ptr<Sockets> sockets, std::weak_ptr<TcpConnection> connection,
              std::uint64_t number)
      : sockets_(std::move(sockets)), connection_(std::move(connection)), number_(number) {}
  // A request that nobody answers any more, after an exception for example, is ended.
  ~SocketReply() override;
  SocketReply(const SocketReply&) = delete;
  SocketReply& operator=(const SocketReply&) = delete;
  void Send(int status, std::string body, HttpHeaders headers) override;
  void Begin(std::string content_type) override;
  void Write(std::string bytes) override;
  void End() override;
  void OnGone(std::function<void()> gone) override;

 private:
  template <typename Function>
  void Post(Function function);

  std::shared_ptr<Sockets> sockets_;  // keeps the io_context
  std::weak_ptr<TcpConnection> connection_;
  std::uint64_t number_;
};

// One client. All of its functions run on the I/O thread.
class TcpConnection final : public Connection, public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(std::shared_ptr<Sockets> sockets, tcp::socket socket)
      : sockets_(std::move(sockets)),
        stream_(std::move(socket), sockets_->tls ? &*sockets_->tls : nullptr),
        timer_(sockets_->io),
        reader_(sockets_->options.header_bytes, sockets_->options.body_bytes) {
    ++sockets_->open;
    error_code error;
    const auto peer = stream_.socket().remote_endpoint(error);
    from_loopback_ = !error && peer.address().is_loopback();
  }
  ~TcpConnection() override { --sockets_->open; }
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  void Start() override {
    since_ = Clock::now();
    Tick();
    if (!stream_.is_tls()) return Read();
    state_ = State::kHandshake;
    stream_.Handshake([self = shared_from_this()](const error_code& error) {
      if (error || self->closed_) return self->Close();
      self->state_ = State::kIdle;
      self->since_ = Clock::now();
      self->Read();
    });
  }

  void Send(std::uint64_t number, int status, const std::string& body, const HttpHeaders& headers) {
    if (!Answers(number) || begun_) return;
    begun_ = true;
    std::string head = Head(status);
    bool typed = false;
    for (const auto& [name, value] : headers) {
      head += StrCat(name, ": ", value, "\r\n");
      typed = typed || name == "Content-Type";
    }
    if (!typed && status != 204) head += "Content-Type: application/json\r\n";
    head += status == 204 ? "\r\n" : StrCat("Content-Length: ", body.size(), "\r\n\r\n");
    Queue(head_only_ ? head : head + body);
    Finish();
  }

  void Begin(std::uint64_t number, const std::string& content_type) {
    if (!Answers(number) || begun_) return;
    begun_ = true;
    chunked_ = !reader_.is_http_1_0();
    keep_alive_ = keep_alive_ && chunked_;
    events_ = content_type.starts_with("text/event-stream");
    Queue(StrCat(Head(200), "Content-Type: ", content_type, "\r\nCache-Control: no-cache\r\n",
                 chunked_ ? "Transfer-Encoding: chunked\r\n" : "", "\r\n"));
  }

  void Write(std::uint64_t number, const std::string& bytes) {
    if (!Answers(number) || !begun_ || bytes.empty()) return;
    Queue(Chunk(bytes));
  }

  void End(std::uint64_t number) {
    if (!Answers(number) || !begun_) return;
    if (chunked_) Queue("0\r\n\r\n");
    Finish();
  }

  void Abandon(std::uint64_t number) {
    if (!Answers(number)) return;
    if (begun_) return Close();
    SendError(500, "the server could not answer");
  }

  void OnGone(std::uint64_t number, std::function<void()> gone) {
    if (closed_) return gone();
    if (Answers(number)) gone_.push_back(std::move(gone));
  }

  void Stop() override {
    if (state_ == State::kIdle && !sending_) return Close();
    if (state_ == State::kReceiving) return Refuse(503, "the server is stopping");
    if (!begun_) keep_alive_ = false;
  }

  bool HasAnswersToSend() const override {
    return !closed_ && (state_ == State::kAnswering || sending_ || !waiting_.empty());
  }

  void Close() override {
    if (closed_) return;
    closed_ = true;
    stream_.Close();
    timer_.cancel();
    for (const auto& gone : std::exchange(gone_, {})) gone();
  }

 private:
  enum class State { kHandshake, kIdle, kReceiving, kAnswering, kEnding };

  bool Answers(std::uint64_t number) const {
    return !closed_ && number == number_ && state_ == State::kAnswering;
  }

  std::string Head(int status) const {
    return StrCat("HTTP/1.1 ", status, " ", ReasonOf(status), "\r\n",
                  keep_alive_ ? "" : "Connection: close\r\n",
                  keep_alive_ && reader_.is_http_1_0() ? "Connection: keep-alive\r\n" : "", cors_);
  }

  std::string Chunk(const std::string& bytes) const {
    if (!chunked_) return bytes;
    char size[20];
    (void)std::snprintf(size, sizeof(size), "%zx\r\n", bytes.size());
    return StrCat(size, bytes, "\r\n");
  }

  // ---- input ----

  void Read() {
    // Pipelined requests wait in the inbox; beyond its bound the client waits.
    const bool full =
        state_ == State::kAnswering && inbox_.size() >= sockets_->options.header_bytes;
    if (reading_ || closed_ || full) return;
    reading_ = true;
    const auto take = [self = shared_from_this()](const error_code& error, std::size_t size) {
      self->reading_ = false;
      if (error) return self->Close();
      if (self->state_ != State::kEnding) self->inbox_.append(self->incoming_, size);
      self->Parse();
      self->Read();
    };
    stream_.ReadSome(asio::buffer(incoming_), take);
  }

  void Parse() {
    while (!closed_ && state_ != State::kAnswering && state_ != State::kEnding) {
      const HttpRequestReader::Outcome outcome = reader_.Read(inbox_);
      if (state_ == State::kIdle && reader_.receiving()) {
        state_ = State::kReceiving;
        since_ = Clock::now();
      }
      switch (outcome) {
        case HttpRequestReader::Outcome::kMore: return;
        case HttpRequestReader::Outcome::kContinue: Queue("HTTP/1.1 100 Continue\r\n\r\n"); break;
        case HttpRequestReader::Outcome::kRequest:
          keep_alive_ = reader_.keeps_alive();
          head_only_ = reader_.head_only();
          SetCors(reader_.request().origin);
          reader_.request().from_loopback = from_loopback_;
          sockets_->handler.Handle(std::move(reader_.request()), Answer());
          break;
        case HttpRequestReader::Outcome::kRefused:
          Refuse(reader_.status(), reader_.message());
          break;
      }
    }
  }

  void SetCors(const std::string& origin) {
    cors_.clear();
    if (sockets_->options.allowed_origins.empty()) return;
    cors_ = "Vary: Origin\r\n";
    if (AllowsOrigin(sockets_->options.allowed_origins, origin)) {
      cors_ += StrCat("Access-Control-Allow-Origin: ", origin, "\r\n");
    }
  }

  std::shared_ptr<HttpReply> Answer() {
    state_ = State::kAnswering;
    begun_ = chunked_ = events_ = false;
    return std::make_shared<SocketReply>(sockets_, weak_from_this(), ++number_);
  }

  void Refuse(int status, const std::string& message) {
    keep_alive_ = head_only_ = false;
    cors_.clear();  // of the request before
    const std::shared_ptr<HttpReply> unused = Answer();
    SendError(status, message);
  }

  void SendError(int status, const std::string& message) {
    Send(number_, status, sockets_->handler.ErrorBody(reader_.request().path, status, message), {});
  }

  // ---- output ----

  void Queue(const std::string& bytes) {
    if (closed_) return;
    if (waiting_.size() + bytes.size() > sockets_->options.output_bytes && sending_) return Close();
    waiting_ += bytes;
    Flush();
  }

  void Flush() {
    if (sending_ || closed_) return;
    if (waiting_.empty()) {
      if (state_ == State::kEnding) Linger();
      return;
    }
    sending_ = true;
    sent_ = Clock::now();
    outgoing_ = std::exchange(waiting_, {});
    const auto sent = [self = shared_from_this()](const error_code& error, std::size_t) {
      self->sending_ = false;
      if (error) return self->Close();
      self->sent_ = Clock::now();
      self->Flush();
    };
    stream_.WriteAll(asio::buffer(outgoing_), sent);
  }

  void Finish() {
    gone_.clear();
    since_ = Clock::now();
    keep_alive_ = keep_alive_ && !sockets_->stopping;
    state_ = keep_alive_ ? State::kIdle : State::kEnding;
    if (state_ == State::kEnding) return Flush();
    // A pipelined request is taken from the loop, so that many of them need no deep stack.
    asio::post(sockets_->io, [self = shared_from_this()] {
      self->Parse();
      self->Read();
    });
  }

  // Says that nothing more comes, and reads on for a moment: closing at once would reset the
  // connection, and the client would lose the answer.
  void Linger() {
    if (std::exchange(lingers_, true)) return;
    stream_.EndWriting([self = shared_from_this()](const error_code&) {});
    inbox_.clear();
    Read();
  }

  // ---- time ----

  void Tick() {
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([weak = weak_from_this()](const error_code& error) {
      const auto self = weak.lock();
      if (error || !self || self->closed_) return;
      self->CheckTime();
      if (!self->closed_) self->Tick();
    });
  }

  void CheckTime() {
    const HttpOptions& options = sockets_->options;
    const auto now = Clock::now();
    const auto older = [&](Clock::time_point time, int seconds) {
      return now - time >= std::chrono::seconds(seconds);
    };
    if (sending_ && older(sent_, options.send_seconds)) return Close();
    if (state_ == State::kHandshake && older(since_, options.receive_seconds)) return Close();
    if (state_ == State::kIdle && older(since_, options.idle_seconds)) return Close();
    if (state_ == State::kEnding && !sending_ && older(since_, 2)) return Close();
    if (state_ == State::kReceiving && older(since_, options.receive_seconds)) {
      return Refuse(408, "the request took too long to arrive");
    }
    if (state_ == State::kAnswering && begun_ && events_ && !sending_ &&
        older(sent_, options.ping_seconds)) {
      Queue(Chunk(": ping\n\n"));
    }
  }

  std::shared_ptr<Sockets> sockets_;
  ClientStream stream_;
  asio::steady_timer timer_;
  State state_ = State::kIdle;
  HttpRequestReader reader_;
  char incoming_[4096];
  std::string cors_;      // headers of the answers to a page
  std::string inbox_;     // received, not parsed
  std::string outgoing_;  // given to the socket
  std::string waiting_;   // sent next
  std::vector<std::function<void()>> gone_;
  std::uint64_t number_ = 0;  // of the request that is answered
  Clock::time_point since_;   // the state began
  Clock::time_point sent_;    // the last output
  bool from_loopback_ = false, lingers_ = false;
  bool reading_ = false, sending_ = false, closed_ = false;
  bool keep_alive_ = false, head_only_ = false;
  bool begun_ = false, chunked_ = false, events_ = false;
};

template <typename Function>
void SocketReply::Post(Function function) {
  asio::post(sockets_->io, [weak = connection_, function = std::move(function)]() mutable {
    if (const auto connection = weak.lock()) function(*connection);
  });
}

SocketReply::~SocketReply() {
  try {
    Post([number = number_](TcpConnection& to) { to.Abandon(number); });
  } catch (const std::exception&) {
    // Without memory for the post, the connection ends with its time.
  }
}

void SocketReply::Send(int status, std::string body, HttpHeaders headers) {
  Post([number = number_, status, body = std::move(body), headers = std::move(headers)](
           TcpConnection& to) { to.Send(number, status, body, headers); });
}

void SocketReply::Begin(std::string content_type) {
  Post([number = number_, type = std::move(content_type)](TcpConnection& to) {
    to.Begin(number, type);
  });
}

void SocketReply::Write(std::string bytes) {
  Post(
      [number = number_, bytes = std::move(bytes)](TcpConnection& to) { to.Write(number, bytes); });
}

void SocketReply::End() {
  Post([number = number_](TcpConnection& to) { to.End(number); });
}

void SocketReply::OnGone(std::function<void()> gone) {
  asio::post(sockets_->io,
             [weak = connection_, number = number_, gone = std::move(gone)]() mutable {
               const auto connection = weak.lock();
               if (!connection) return gone();
               connection->OnGone(number, std::move(gone));
             });
}

}  // namespace

std::shared_ptr<Connection> MakeConnection(std::shared_ptr<Sockets> sockets, tcp::socket socket) {
  return std::make_shared<TcpConnection>(std::move(sockets), std::move(socket));
}

}  // namespace kvcache::server
