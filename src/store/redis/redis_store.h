// The Redis store over connections that somebody else makes, and with other limits, for tests:
// kvcache/store.h has the rest.
//
// Thread safety: that of Store.
#pragma once

#include <cstddef>
#include <memory>

#include "kvcache/store.h"
#include "store/redis/redis_nodes.h"

namespace kvcache::store {

// More than this is an error of List.
struct RedisListLimits {
  int rounds = 1'000'000;  // of SCAN for each server, with about 1,000 keys each
  std::size_t objects = std::size_t{1} << 24;  // of all servers
};

// OpenRedisStore, with connections of `open`.
Result<std::unique_ptr<Store>> OpenRedisStoreOver(const RedisStoreOptions& options,
                                                  RedisNodes::Opener open,
                                                  const RedisListLimits& limits = {});

}  // namespace kvcache::store
