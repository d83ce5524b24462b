#include "store/redis/redis_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::store {
namespace {

constexpr std::size_t kReceiveBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxVectors = 16;  // of one system call
// A page of SCAN has some thousand keys, CLUSTER SLOTS at most 16,384 ranges of some nodes.
constexpr std::int64_t kMaxParts = std::int64_t{1} << 19;
constexpr std::int64_t kMaxAnswerBytes = std::int64_t{520} << 20;  // a value has 512 MiB at most

using MakeArray = decltype(redisReplyObjectFunctions::createArray);
MakeArray usual_make_array = nullptr;

// hiredis makes room for as many parts as an answer claims to have. This refuses what exceeds the number that
// the reader's `privdata` points to.
template <class Count>  // hiredis' versions have different types for it
void* MakeBoundedArray(const redisReadTask* task, Count parts) {
  auto& left = *static_cast<std::int64_t*>(task->privdata);
  if (static_cast<std::int64_t>(parts) > left) return nullptr;
  left -= static_cast<std::int64_t>(parts);
  return usual_make_array(task, parts);
}

redisReplyObjectFunctions* BoundedFunctions(const redisReplyObjectFunctions& usual) {
  static redisReplyObjectFunctions bounded = [&usual] {
    usual_make_array = usual.createArray;
    redisReplyObjectFunctions functions = usual;
    functions.createArray = &MakeBoundedArray;
    return functions;
  }();
  return &bounded;
}

Status Failed(std::string_view what, int error) {
  return {StatusCode::kIo, StrCat(what, ": ", std::generic_category().message(error))};
}

void AddArgumentHead(std::string& text, std::size_t size) {
  text += StrCat("$", size, "\r\n");
}

iovec VectorOf(const char* data, std::size_t size) {
  return {const_cast<char*>(data), size};
}

}  // namespace

std::string_view TextOf(const redisReply& reply) {
  if (reply.str == nullptr) return {};
  return {reply.str, static_cast<std::size_t>(reply.len)};
}

Result<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisAddress& address,
                                                               const RedisUrl& url,
                                                               Deadline deadline) {
  KVCACHE_ASSIGN_OR_RETURN(auto opened, Make());
  KVCACHE_RETURN_IF_ERROR(opened->Connect(address, deadline));
  KVCACHE_RETURN_IF_ERROR(opened->LogIn(url, deadline));
  return opened;
}

Result<std::unique_ptr<RedisConnection>> RedisConnection::Over(int socket, const RedisUrl& url,
                                                               Deadline deadline) {
  KVCACHE_ASSIGN_OR_RETURN(auto opened, Make());
  opened->socket_ = FileDescriptor(socket);
  KVCACHE_RETURN_IF_ERROR(opened->LogIn(url, deadline));
  return opened;
}

Result<std::unique_ptr<RedisConnection>> RedisConnection::Make() {
  std::unique_ptr<RedisConnection> made(new RedisConnection);
  made->reader_.reset(redisReaderCreate());
  if (made->reader_ == nullptr) {
    return OutOfMemory("no memory for a connection to Redis");
  }
  made->reader_->maxbuf = 0;  // the buffer of a large answer serves the next one
  made->reader_->fn = BoundedFunctions(*made->reader_->fn);
  made->reader_->privdata = &made->parts_left_;
  made->received_.resize(kReceiveBytes);
  return made;
}

RedisConnection::~RedisConnection() = default;

Status RedisConnection::WaitFor(short events, Deadline deadline) const {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waits{.fd = socket_.get(), .events = events, .revents = 0};
    const int ready = poll(&waits, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (ready > 0) return Status::Ok();
    if (ready == 0) return {StatusCode::kIo, "no answer in time"};
    if (errno != EINTR) return Failed("cannot wait for an answer", errno);
  }
}

Status RedisConnection::Connect(const RedisAddress& address, Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = StrCat(address.port);
  if (const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return {StatusCode::kIo, StrCat("cannot find the host: ", gai_strerror(error))};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  Status status = {StatusCode::kIo, "the host has no address"};
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    socket_ =
        FileDescriptor(socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_.is_open()) {
      status = Failed("cannot make a socket", errno);
      continue;
    }
    const int yes = 1;
    (void)setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (connect(socket_.get(), at->ai_addr, at->ai_addrlen) == 0) return Status::Ok();
    status = Failed("cannot connect", errno);
    if (errno != EINPROGRESS) continue;
    status = WaitFor(POLLOUT, deadline);
    if (!status.ok()) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    (void)getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return Status::Ok();
    status = Failed("cannot connect", error);
  }
  return status;
}

Status RedisConnection::LogIn(const RedisUrl& url, Deadline deadline) {
  const auto check = [](Result<RedisReply> reply) -> Status {
    if (!reply.ok()) return std::move(reply).TakeStatus();
    if ((*reply)->type != REDIS_REPLY_ERROR) return Status::Ok();
    return {StatusCode::kIo, StrCat("the server says: ", OneLine(TextOf(**reply)))};
  };
  if (!url.user.empty()) {
    KVCACHE_RETURN_IF_ERROR(check(Ask({"AUTH", url.user, url.password}, deadline)));
  } else if (!url.password.empty()) {
    KVCACHE_RETURN_IF_ERROR(check(Ask({"AUTH", url.password}, deadline)));
  }
  if (url.database == 0) return Status::Ok();
  return check(Ask({"SELECT", StrCat(url.database)}, deadline));
}

Status RedisConnection::Send(std::span<const std::string_view> arguments,
                             std::span<const std::span<const std::byte>> parts, Deadline deadline) {
  std::string head = StrCat("*", arguments.size() + (parts.empty() ? 0 : 1), "\r\n");
  for (const std::string_view argument : arguments) {
    AddArgumentHead(head, argument.size());
    head += argument;
    head += "\r\n";
  }
  std::vector<iovec> vectors;
  std::size_t size = 0;
  for (const std::span<const std::byte> part : parts) size += part.size();
  if (!parts.empty()) AddArgumentHead(head, size);
  vectors.push_back(VectorOf(head.data(), head.size()));
  for (const std::span<const std::byte> part : parts) {
    vectors.push_back(VectorOf(reinterpret_cast<const char*>(part.data()), part.size()));
  }
  if (!parts.empty()) vectors.push_back(VectorOf("\r\n", 2));
  for (std::size_t first = 0; first < vectors.size();) {
    msghdr message{};
    message.msg_iov = &vectors[first];
    message.msg_iovlen = std::min(kMaxVectors, vectors.size() - first);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed("cannot send", errno);
      KVCACHE_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline));
      continue;
    }
    if (std::chrono::steady_clock::now() > deadline) return {StatusCode::kIo, "no answer in time"};
    auto left = static_cast<std::size_t>(sent);
    while (first < vectors.size() && left >= vectors[first].iov_len) {
      left -= vectors[first].iov_len;
      ++first;
    }
    if (left > 0) {
      vectors[first].iov_base = static_cast<char*>(vectors[first].iov_base) + left;
      vectors[first].iov_len -= left;
    }
  }
  return Status::Ok();
}

Result<RedisReply> RedisConnection::Receive(Deadline deadline) {
  parts_left_ = kMaxParts;
  std::int64_t bytes = 0;
  for (;;) {
    void* reply = nullptr;
    if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
      return Corrupt(StrCat("the answer is not Redis': ", OneLine(reader_->errstr)));
    }
    RedisReply answer(static_cast<redisReply*>(reply));  // is freed also if it is refused
    if (bytes > kMaxAnswerBytes) {
      return Corrupt(StrCat("the answer has more than ", kMaxAnswerBytes,
                            " bytes; no value of this store has"));
    }
    if (answer != nullptr) return answer;
    if (std::chrono::steady_clock::now() > deadline) {
      return Status(StatusCode::kIo, "no answer in time");
    }
    const ssize_t count = recv(socket_.get(), received_.data(), received_.size(), 0);
    if (count == 0) return Status(StatusCode::kIo, "the server closed the connection");
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed("cannot receive", errno);
      KVCACHE_RETURN_IF_ERROR(WaitFor(POLLIN, deadline));
      continue;
    }
    if (redisReaderFeed(reader_.get(), received_.data(), static_cast<std::size_t>(count)) !=
        REDIS_OK) {
      return OutOfMemory("no memory for an answer of Redis");
    }
    bytes += count;
  }
}

Result<RedisReply> RedisConnection::Ask(std::initializer_list<std::string_view> arguments,
                                        Deadline deadline) {
  KVCACHE_RETURN_IF_ERROR(Send(arguments, deadline));
  return Receive(deadline);
}

bool RedisConnection::IsStale() const {
  char byte = 0;
  const ssize_t count = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

}  // namespace kvcache::store
