// The servers of a Redis deployment, one or a cluster's: connections to them, which node has a key, and
// the pause after a failure.
//
// Thread safety: all calls from any number of threads. A lease belongs to one thread.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "store/redis/redis_connection.h"
#include "store/redis/redis_url.h"
#include "store/retry_pause.h"

namespace kvcache::store {

// Returns the slot of a key in a cluster, in [0, 16384).
int RedisSlot(std::string_view key);

class RedisNodes {
 public:
  using Deadline = RedisConnection::Deadline;

  // Connects to a node.
  using Opener = std::function<Result<std::unique_ptr<RedisConnection>>(
      const RedisAddress& address, const RedisUrl& url, Deadline deadline)>;

  RedisNodes(RedisUrl url, int max_pause_ms, Opener open = &RedisConnection::Open);

  // A connection to a node, for one thread.
  struct Lease {
    RedisAddress address;
    std::unique_ptr<RedisConnection> connection;
  };
  // Returns a connection, a new one if all are in use. Errors: kIo, at once if the node failed a moment
  // ago.
  Result<Lease> Take(const RedisAddress& address, Deadline deadline);
  // Takes a connection back whose answers were all read. The node's pause is over.
  void GiveBack(Lease lease);
  // Says that a node failed: it is left alone for a while, twice as long as the last time.
  void Failed(const RedisAddress& address, const Status& why);

  // Returns the node that has the slot, as far as is known: else any node that has not failed.
  RedisAddress NodeOf(int slot);
  // Says that a node answered MOVED: `where` has the slot. Asks it for the other slots, if that was not
  // done a moment ago.
  void Moved(int slot, const RedisAddress& where, Deadline deadline);
  // Returns all nodes that are known.
  std::vector<RedisAddress> All();

 private:
  struct Node {
    RedisAddress address;
    RetryPause pause;
    std::vector<std::unique_ptr<RedisConnection>> idle{};
    std::string problem{};
  };

  Node& Find(const RedisAddress& address);  // with the mutex
  void LearnSlots(const redisReply& slots, const RedisAddress& from);

  const RedisUrl url_;
  const std::chrono::milliseconds max_pause_;
  const Opener open_;
  std::mutex mutex_;
  std::map<std::string, Node> nodes_;  // by address
  std::vector<RedisAddress> slots_;    // empty, or one for each slot; without a host: unknown
  std::chrono::steady_clock::time_point learned_{};
};

}  // namespace kvcache::store
