// Several caches as one, for models whose layers differ: sliding and full, decoder and encoder,
// attention and recurrent.
//
// Every call goes to all inner caches, except Put, Get, Storage and Visible, which go to the one
// that SetLayer or SetLayerType selected. The selection lasts until the next such call, also across
// passes. A pass begins in all caches or in none. A position can be resumed, and a length restored,
// if all caches can.
//
// Errors: if one cache fails in Init, the wrapper is closed. If one runs out of memory half-way
// through CopyPrefix, dst is empty in all. If one fails half-way through Remove, the caller must
// remove the whole sequence.
//
// Thread safety: as in cache.h. Design: docs/design/kinds.md.
#pragma once

#include <memory>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {

struct WrapperOptions {
  std::vector<std::unique_ptr<Cache>> caches{};
  // [layers]: index of the cache that SetLayer selects for each layer. For a layer beyond the list
  // SetLayer keeps the selection; call SetLayerType. At first, cache 0 is selected.
  std::vector<int> cache_of_layer{};
};

// Returns a cache that is not initialised. After the selection of an index out of range, Put, Get
// and Storage return kInvalidArgument and Visible is empty.
// REQUIRES: at least one cache, none null.
std::unique_ptr<Cache> MakeWrapperCache(WrapperOptions options);

}  // namespace kvcache
