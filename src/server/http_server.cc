#include "server/http_server.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <thread>

#include "base/strings.h"

namespace kvcache::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
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

class Connection;

struct Shared {
  const HttpOptions options;
  HttpHandler& handler;
  bool accepting = false;
  asio::io_context io{1};
  std::size_t open = 0;   // connections
  bool stopping = false;  // each connection ends with its answer
};

// Part of a function that waits for a connection. Without memory, the function ends without being called.
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

// Forwards calls from any thread to the connection's, for one of its requests.
class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<Shared> shared, std::weak_ptr<Connection> connection, std::uint64_t number)
      : shared_(std::move(shared)), connection_(std::move(connection)), number_(number) {}
  // A request that nobody answers any more, after an exception for example, is ended.
  ~Reply() override;
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  void Send(int status, std::string body, HttpHeaders headers) override;
  void Begin(std::string content_type) override;
  void Write(std::string bytes) override;
  void End() override;
  void OnGone(std::function<void()> gone) override;

 private:
  template <typename Function>
  void Post(Function function);

  std::shared_ptr<Shared> shared_;  // keeps the io_context
  std::weak_ptr<Connection> connection_;
  std::uint64_t number_;
};

// One client. All of its functions run on the I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> shared, tcp::socket socket)
      : shared_(std::move(shared)),
        socket_(std::move(socket)),
        timer_(shared_->io),
        reader_(shared_->options.header_bytes, shared_->options.body_bytes) {
    ++shared_->open;
  }
  ~Connection() { --shared_->open; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start() {
    since_ = Clock::now();
    Tick();
    Read();
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
    if (!typed) head += "Content-Type: application/json\r\n";
    head += StrCat("Content-Length: ", body.size(), "\r\n\r\n");
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

  // Closes the connection when it has nothing to answer.
  void Stop() {
    if (state_ == State::kIdle && !sending_) return Close();
    if (state_ == State::kReceiving) return Refuse(503, "the server is stopping");
    if (!begun_) keep_alive_ = false;
  }

  bool HasAnswersToSend() const {
    return !closed_ && (state_ == State::kAnswering || sending_ || !waiting_.empty());
  }

  void Close() {
    if (closed_) return;
    closed_ = true;
    error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    for (const auto& gone : std::exchange(gone_, {})) gone();
  }

 private:
  enum class State { kIdle, kReceiving, kAnswering, kEnding };

  bool Answers(std::uint64_t number) const {
    return !closed_ && number == number_ && state_ == State::kAnswering;
  }

  std::string Head(int status) const {
    return StrCat("HTTP/1.1 ", status, " ", ReasonOf(status), "\r\n",
                  keep_alive_ ? "" : "Connection: close\r\n",
                  keep_alive_ && reader_.is_http_1_0() ? "Connection: keep-alive\r\n" : "");
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
    const bool full = state_ == State::kAnswering && inbox_.size() >= shared_->options.header_bytes;
    if (reading_ || closed_ || full) return;
    reading_ = true;
    const auto take = [self = shared_from_this()](const error_code& error, std::size_t size) {
      self->reading_ = false;
      if (error) return self->Close();
      if (self->state_ != State::kEnding) self->inbox_.append(self->incoming_, size);
      self->Parse();
      self->Read();
    };
    socket_.async_read_some(asio::buffer(incoming_), take);
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
          shared_->handler.Handle(std::move(reader_.request()), Answer());
          break;
        case HttpRequestReader::Outcome::kRefused:
          Refuse(reader_.status(), reader_.message());
          break;
      }
    }
  }

  std::shared_ptr<HttpReply> Answer() {
    state_ = State::kAnswering;
    begun_ = chunked_ = events_ = false;
    return std::make_shared<Reply>(shared_, weak_from_this(), ++number_);
  }

  void Refuse(int status, const std::string& message) {
    keep_alive_ = head_only_ = false;
    const std::shared_ptr<HttpReply> unused = Answer();
    SendError(status, message);
  }

  void SendError(int status, const std::string& message) {
    Send(number_, status, shared_->handler.ErrorBody(reader_.request().path, status, message), {});
  }

  // ---- output ----

  void Queue(const std::string& bytes) {
    if (closed_) return;
    if (waiting_.size() + bytes.size() > shared_->options.output_bytes && sending_) return Close();
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
    asio::async_write(socket_, asio::buffer(outgoing_), sent);
  }

  void Finish() {
    gone_.clear();
    since_ = Clock::now();
    keep_alive_ = keep_alive_ && !shared_->stopping;
    state_ = keep_alive_ ? State::kIdle : State::kEnding;
    if (state_ == State::kEnding) return Flush();
    // A pipelined request is taken from the loop, so that many of them need no deep stack.
    asio::post(shared_->io, [self = shared_from_this()] {
      self->Parse();
      self->Read();
    });
  }

  // Says that nothing more comes, and reads on for a moment: closing at once would reset the
  // connection, and the client would lose the answer.
  void Linger() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
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
    const HttpOptions& options = shared_->options;
    const auto now = Clock::now();
    const auto older = [&](Clock::time_point time, int seconds) {
      return now - time >= std::chrono::seconds(seconds);
    };
    if (sending_ && older(sent_, options.send_seconds)) return Close();
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

  std::shared_ptr<Shared> shared_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  State state_ = State::kIdle;
  HttpRequestReader reader_;
  char incoming_[4096];
  std::string inbox_;     // received, not parsed
  std::string outgoing_;  // given to the socket
  std::string waiting_;   // sent next
  std::vector<std::function<void()>> gone_;
  std::uint64_t number_ = 0;  // of the request that is answered
  Clock::time_point since_;   // the state began
  Clock::time_point sent_;    // the last output
  bool reading_ = false, sending_ = false, closed_ = false;
  bool keep_alive_ = false, head_only_ = false;
  bool begun_ = false, chunked_ = false, events_ = false;
};

template <typename Function>
void Reply::Post(Function function) {
  asio::post(shared_->io, [weak = connection_, function = std::move(function)]() mutable {
    if (const auto connection = weak.lock()) function(*connection);
  });
}

Reply::~Reply() {
  try {
    Post([number = number_](Connection& to) { to.Abandon(number); });
  } catch (const std::exception&) {
    // Without memory for the post, the connection ends with its time.
  }
}

void Reply::Send(int status, std::string body, HttpHeaders headers) {
  Post([number = number_, status, body = std::move(body),
        headers = std::move(headers)](Connection& to) { to.Send(number, status, body, headers); });
}

void Reply::Begin(std::string content_type) {
  Post([number = number_, type = std::move(content_type)](Connection& to) {
    to.Begin(number, type);
  });
}

void Reply::Write(std::string bytes) {
  Post([number = number_, bytes = std::move(bytes)](Connection& to) { to.Write(number, bytes); });
}

void Reply::End() {
  Post([number = number_](Connection& to) { to.End(number); });
}

void Reply::OnGone(std::function<void()> gone) {
  asio::post(shared_->io, [weak = connection_, number = number_, gone = std::move(gone)]() mutable {
    const auto connection = weak.lock();
    if (!connection) return gone();
    connection->OnGone(number, std::move(gone));
  });
}

class Server final : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler& handler)
      : shared_(new Shared{.options = options, .handler = handler}),
        acceptor_(shared_->io),
        retry_(shared_->io) {}

  ~Server() override {
    try {
      asio::post(shared_->io, [this] { CloseAll(); });
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
    asio::post(shared_->io, [this] { StopAll(); });
  }

  bool WaitUntilSent(std::chrono::milliseconds most) override {
    const auto end = Clock::now() + most;
    while (CountUnsent() > 0) {
      if (Clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  Status Listen() {
    error_code error;
    const auto address = asio::ip::make_address(shared_->options.address, error);
    if (error) {
      return {StatusCode::kInvalidArgument,
              StrCat("the address ", Quoted(shared_->options.address), " is not an IP address")};
    }
    const tcp::endpoint endpoint(address, shared_->options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return {StatusCode::kIo, StrCat("cannot listen on ", shared_->options.address, ":",
                                      shared_->options.port, ": ", error.message())};
    }
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([this] { Run(); });
    return Status::Ok();
  }

  std::uint16_t port() const override { return port_; }

 private:
  void StopAll() {
    error_code ignored;
    shared_->stopping = true;
    acceptor_.close(ignored);
    retry_.cancel();
    for (const auto& weak : connections_) {
      if (const auto connection = weak.lock()) connection->Stop();
    }
  }

  std::size_t CountUnsent() {
    auto count = std::make_shared<std::promise<std::size_t>>();
    auto counted = count->get_future();
    asio::post(shared_->io, [this, count] {
      count->set_value(static_cast<std::size_t>(
          std::count_if(connections_.begin(), connections_.end(), [](const auto& weak) {
            const auto connection = weak.lock();
            return connection && connection->HasAnswersToSend();
          })));
    });
    return counted.get();
  }

  void Accept() {
    if (shared_->accepting) return;
    acceptor_.async_accept([this, accepting = Accepting(shared_->accepting)](
                               const error_code& error, tcp::socket socket) mutable {
      accepting.End();
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater();  // no descriptor is free
      Accept();
      if (shared_->open < shared_->options.connections) {
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        const auto connection = std::make_shared<Connection>(shared_, std::move(socket));
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
        shared_->io.run();
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
    if (connections_.size() >= 2 * shared_->open + 16) {
      std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
    }
    connections_.push_back(connection);
  }

  std::shared_ptr<Shared> shared_;
  // The thread runs until the end, also without connections.
  asio::executor_work_guard<asio::io_context::executor_type> work_{shared_->io.get_executor()};
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                      HttpHandler& handler) {
  auto server = std::make_unique<Server>(options, handler);
  KVCACHE_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace kvcache::server
