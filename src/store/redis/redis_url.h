// The address of a Redis server as text: redis://[[user]:password@]host[:port][/db].
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache::store {

struct RedisAddress {
  std::string host;
  int port = 6379;
  friend bool operator==(const RedisAddress&, const RedisAddress&) = default;
};

// Returns "host:port", with brackets around an IPv6 address.
std::string TextOf(const RedisAddress& address);
// Returns whether the text can be the name or the address of a host: servers name other nodes, and the
// names come into messages.
bool IsRedisHost(std::string_view text);
// Reads "host:port", as in an answer of a cluster. Errors: kInvalidArgument.
Result<RedisAddress> ParseRedisAddress(std::string_view text);

struct RedisUrl {
  RedisAddress address;
  std::string user;  // empty: the default user
  std::string password;
  int database = 0;

  // Returns the URL without user and password, for messages.
  std::string Name() const;
};

// Parts of `text` may be percent-encoded. Errors: kInvalidArgument, with the rule. No message has the
// password.
Result<RedisUrl> ParseRedisUrl(std::string_view text);

}  // namespace kvcache::store
