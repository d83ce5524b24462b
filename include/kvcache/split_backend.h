// Two backends as one: the layers of a model are divided between them.
//
// Thread safety: the function may be called from any thread; for backends see kv_backend.h.
#pragma once

#include <memory>

#include "kvcache/backend.h"

namespace kvcache {

// Returns a backend of which `first` computes what comes before layer `boundary` of a model, and `second` that layer
// and all behind it (Backend::EnterLayer). REQUIRES: neither is null; both prefer one layout of cells, and their
// bytes of cells on the host are the same.
std::unique_ptr<Backend> MakeSplitBackend(std::unique_ptr<Backend> first,
                                          std::unique_ptr<Backend> second, int boundary);

}  // namespace kvcache
