// What a cache takes of the memory of its backend and of the system: Cache::memory().
//
// Thread safety: that of its cache.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/batch.h"
#include "kvcache/status.h"

namespace kvcache {

class CacheMemory {
 public:
  virtual ~CacheMemory() = default;

  // Returns the bytes held now: K and V of all layers, and recurrent states.
  virtual std::int64_t AllocatedBytes() const = 0;
  // Returns the part of AllocatedBytes() that tokens, snapshots and states need, and the host memory
  // of snapshots. Cells that share a tile or a page with a cell in use are not counted.
  virtual std::int64_t UsedBytes() const = 0;
  // Returns the bytes of the system's memory that the cache takes now: those of AllocatedBytes() that
  // were written since they were last given back, and SnapshotBytes() and SpareBytes() of its snapshots.
  virtual std::int64_t ResidentBytes() const = 0;
  // Returns the number of cells that no sequence and no snapshot has. A cache with a window evicts
  // when it needs cells, and has no bound: it returns the largest number. A wrapper returns that of
  // the cache with the fewest.
  virtual std::int64_t FreeCells() const = 0;

  // Returns a bound in bytes of what ResidentBytes() would grow by in a pass that adds `length` tokens to
  // each of these sequences, each at most once, takes `captures` captures inside of it, and has `rounds`
  // sequences that are in a transaction, up to the end of its commit. Passes with alternatives
  // (Batch::parents) have no bound.
  virtual std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                                int rounds) const = 0;
  // Gives the memory of free cells and free states back to the system. Ends the pass. Does nothing
  // without CacheOptions::releases_memory. Errors: the backend's.
  virtual Status ReleaseFreeMemory() = 0;
  // Moves the used cells to the front, without holes, for kernels that read dense views. O(cells).
  // Ends the pass, even if it fails; nothing else changes then. Errors: kOutOfMemory, and the
  // backend's.
  virtual Status Compact() = 0;
};

}  // namespace kvcache
