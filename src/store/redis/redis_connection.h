// One connection to a Redis server. Commands are sent without waiting for the answers of earlier ones
// (pipelining). Every call has a deadline that it does not pass, whatever the server does.
//
// Thread safety: one thread at a time.
#pragma once

#include <hiredis/hiredis.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "platform/file_descriptor.h"
#include "store/redis/redis_url.h"

namespace kvcache::store {

struct FreeRedisReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using RedisReply = std::unique_ptr<redisReply, FreeRedisReply>;

class RedisConnection {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Connects, and sends the login and the database of `url` if it has any. Errors: kIo, in the system's
  // or the server's words.
  static Result<std::unique_ptr<RedisConnection>> Open(const RedisAddress& address,
                                                       const RedisUrl& url, Deadline deadline);
  // The same over a connected socket that does not block, which it takes. For tests.
  static Result<std::unique_ptr<RedisConnection>> Over(int socket, const RedisUrl& url,
                                                       Deadline deadline);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Sends a command of these arguments, the last of which is in `parts`, without a copy of them. After an
  // error the connection is of no more use. Errors: kIo.
  Status Send(std::span<const std::string_view> arguments,
              std::span<const std::span<const std::byte>> parts, Deadline deadline);
  Status Send(std::initializer_list<std::string_view> arguments, Deadline deadline) {
    return Send(std::span(arguments.begin(), arguments.size()), {}, deadline);
  }
  // Returns the answer to the next command, which may be an error of the server. After an error the
  // connection is of no more use. Errors: kIo; kCorrupt for an answer that is not Redis', or larger than
  // any that this store asks for.
  Result<RedisReply> Receive(Deadline deadline);
  // Sends a command, and returns its answer.
  Result<RedisReply> Ask(std::initializer_list<std::string_view> arguments, Deadline deadline);

  // Returns whether the server has closed the connection, or sent what nobody asked for.
  bool IsStale() const;

 private:
  RedisConnection() = default;
  static Result<std::unique_ptr<RedisConnection>> Make();
  Status Connect(const RedisAddress& address, Deadline deadline);
  Status LogIn(const RedisUrl& url, Deadline deadline);
  Status WaitFor(short events, Deadline deadline) const;

  FileDescriptor socket_;
  struct FreeReader {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };
  std::unique_ptr<redisReader, FreeReader> reader_;
  std::vector<char> received_;
  std::int64_t parts_left_ = 0;  // that the answer may have
};

// Returns the text of a status, an error or a string.
std::string_view TextOf(const redisReply& reply);

}  // namespace kvcache::store
