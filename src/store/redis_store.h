// The Redis store over connections that somebody else makes, for tests: kvcache/store.h has the rest.
//
// Thread safety: that of Store.
#pragma once

#include <memory>

#include "kvcache/store.h"
#include "store/redis_nodes.h"

namespace kvcache {

// OpenRedisStore, with connections of `open`.
Result<std::unique_ptr<Store>> OpenRedisStoreOver(const RedisStoreOptions& options,
                                                  RedisNodes::Opener open);

}  // namespace kvcache
