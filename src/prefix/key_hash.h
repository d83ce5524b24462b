// The chained hash of keys: a number for a prefix, from that of a shorter prefix and the keys between.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "base/keyed_hash.h"
#include "kvcache/prefix_cache.h"

namespace kvcache::prefix {

// Returns the hash of no keys under a salt.
inline std::uint64_t KeyHashOf(std::uint64_t salt) {
  return MixHash(salt ^ kHashOdd1, kHashOdd2);
}

// Returns the hash of a prefix with this key behind it.
inline std::uint64_t AddKey(std::uint64_t hash, PrefixKey key) {
  return MixHash(hash ^ kHashOdd1, key ^ kHashOdd2) + key;
}

}  // namespace kvcache::prefix
