// Several caches as one, for models whose layers differ: sliding and full, decoder and encoder,
// attention and recurrent.
//
// Every call goes to all; Put, Get, Storage and Visible to the one that SetLayer or SetLayerType
// chose. A pass begins in all or in none. Resuming and restoring is possible where all can.
//
// Init: a wrapper of which one cache refused is closed. CopyPrefix and Remove: where one runs
// out of memory half-way, dst is empty, or the sequence is the caller's to remove.
//
// Thread safety and errors: as in cache.h. Design: docs/design/kinds.md.
#pragma once

#include <memory>
#include <vector>

#include "kvcache/cache.h"

namespace kvcache {

struct WrapperOptions {
  std::vector<std::unique_ptr<Cache>> caches{};
  // Per layer, which of them SetLayer chooses; for layers beyond the list it chooses none, and
  // SetLayerType says.
  std::vector<int> cache_of_layer{};
};

// REQUIRES: at least one cache, none null. After a choice that is out of range Put, Get and Storage
// are kInvalidArgument.
std::unique_ptr<Cache> MakeWrapperCache(WrapperOptions options);

}  // namespace kvcache
