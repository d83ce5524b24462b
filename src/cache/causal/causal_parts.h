// What the calls of a causal cache share: its options, the bytes of its layers, its cells, and who needs
// them beside the sequences.
//
// Each part keeps its own invariants. CausalCache and CausalPass change several of them together.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cache/causal/causal_snapshot_pool.h"
#include "cache/causal/window_eviction.h"
#include "cache/cells/cell_table.h"
#include "cache/open_transactions.h"
#include "cache/pass/cache_storage.h"
#include "cache/snapshot/captures.h"
#include "kvcache/causal_cache.h"

namespace kvcache {

// Layers whose memory goes back to the system have a multiple of this: whole pages of every shape.
inline constexpr int kReleasingCells = 2048;

struct CausalParts {
  explicit CausalParts(CausalOptions causal) : options(std::move(causal)) {}

  // Returns the error that Init would return before it allocates.
  Status CheckInit(const KvBackend& backend, const CacheOptions& sizes) const;
  // Makes all parts but the storage. May throw std::bad_alloc. REQUIRES: CheckInit returned Ok.
  void Reset(const KvBackend& backend, const CacheOptions& sizes);
  // Opens the storage. REQUIRES: Reset.
  void Open(KvBackend& backend, const CacheOptions& sizes);
  // Undoes Reset.
  void Clear();
  // Frees everything. Snapshots that outlive the cache are worth nothing then.
  void Close();

  bool has_window() const { return options.window > 0; }

  CausalOptions options;
  CacheStorage storage;
  CellTable cells;
  WindowEviction eviction;
  Captures captures;              // the snapshots that passes take
  OpenTransactions transactions;  // the sequences in a transaction
  // The snapshots, and the cells that they hold; null: not open.
  std::shared_ptr<SnapshotPool> pool;
  std::string sizes_text;  // for messages
};

}  // namespace kvcache
