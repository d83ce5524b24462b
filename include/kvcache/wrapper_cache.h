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
// A wrapper may hold one cache of a kind outside this library, which Init checks. Such a cache cannot be
// asked in advance, so the wrapper calls it after all others have agreed and before any of them changes.
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

class WrapperCache : public Cache {
 public:
  // Selects the inner cache for Put, Get, Storage, Visible and FindCells. After the selection of an index
  // out of range, Put, Get, Storage and FindCells return kInvalidArgument and Visible is empty.
  virtual void SetLayerType(int type) = 0;
  // Returns the inner cache that SetLayer selects for the layer; in nested wrappers, the innermost. A pass
  // or a transaction of it alone leaves the others as they are. The wrapper owns it.
  virtual Cache& OfLayer(int layer) = 0;

 protected:
  using Cache::Cache;
};

// Returns the cache that holds the layer: `cache` or, in a wrapper, one of its inner caches.
inline Cache& CacheOfLayer(Cache& cache, int layer) {
  WrapperCache* const wrapper = cache.Wrapper();
  return wrapper == nullptr ? cache : wrapper->OfLayer(layer);
}

// Returns a cache that is not initialised. REQUIRES: at least one cache, none null.
std::unique_ptr<WrapperCache> MakeWrapperCache(WrapperOptions options);

}  // namespace kvcache
