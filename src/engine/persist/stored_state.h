// The payload of a stored state (docs/formats/store-object.md): an exported snapshot, and behind it perhaps
// the model's final state of the snapshot's last token, which a draft head reads with the next token.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/snapshot.h"
#include "store/tiers/write_behind.h"

namespace kvcache {

// Returns the payload of a snapshot of the cache. `last` is the final state of its last token; without it, the
// payload is the exported snapshot. Errors: those of CacheSnapshots::Export; kOutOfMemory.
Result<store::StoreBytes> WriteStoredState(Cache& cache, const Snapshot& snapshot,
                                           std::span<const float> last);

struct StoredState {
  std::unique_ptr<Snapshot> snapshot;
  std::vector<float> last;  // the final state of its last token; empty if the payload has none
};
// Checks all of the payload before the cache imports the snapshot. `hidden_size` is that of a model with a draft
// head; 0 for one without, which ignores the final state. REQUIRES nothing of the bytes. Errors: kCorrupt for a
// final state that is not as described, or of another size; those of CacheSnapshots::Import.
Result<StoredState> ReadStoredState(Cache& cache, std::span<const std::byte> payload,
                                    std::int64_t hidden_size);

}  // namespace kvcache
