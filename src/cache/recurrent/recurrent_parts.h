// What the calls of a recurrent cache share: its options, its attention, the states, and who needs them
// beside the sequences.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cache/causal/causal_cache_impl.h"
#include "cache/pass/draft_inputs.h"
#include "cache/recurrent/recurrent_captures.h"
#include "cache/recurrent/recurrent_snapshot_pool.h"
#include "cache/recurrent/state_store.h"
#include "cache/recurrent/state_table.h"
#include "kvcache/recurrent_cache.h"

namespace kvcache {

struct RecurrentParts {
  static constexpr Position kNotPrepared = -1;

  explicit RecurrentParts(RecurrentOptions recurrent)
      : options(std::move(recurrent)), attention(options.attention) {}

  // Returns the error that Init would return before it allocates.
  Status CheckInit(const KvBackend& backend, const CacheOptions& cache) const;
  // Makes all parts but the attention. May throw std::bad_alloc. REQUIRES: CheckInit returned Ok.
  void Reset(KvBackend& backend, const CacheOptions& cache);
  // Frees everything. Snapshots that outlive the cache are worth nothing then.
  void Close();

  StateStore& StoreOf(StateKind kind) { return kind == StateKind::kConvolution ? conv : state; }
  bool has_layers() const { return !options.layers.empty(); }
  Position length(SequenceId id) const { return attention.cells().history(id).length(); }
  bool in_transaction(SequenceId id) const { return attention.open_transactions().has(id); }
  // Forgets the result of PrepareRestore: the sequence has changed.
  void Unprepare(SequenceId id) { prepared[Index(id)] = kNotPrepared; }

  RecurrentOptions options;
  CacheOptions sizes{};  // of Init; capacity 0: it has not succeeded
  CausalCache attention;
  StateTable states;               // the cell of each state, and the restore points
  StateStore conv;                 // the bytes of convolution states
  StateStore state;                // and of recurrent states
  DraftInputStore inputs;          // what computes states again: accepted drafts, commits
  RecurrentCaptures captures;      // the states that passes take for captures
  std::vector<Position> prepared;  // [sequences]: result of PrepareRestore, or kNotPrepared
  std::vector<int> index_of_layer;
  std::shared_ptr<RecurrentSnapshotPool> pool;  // null: not open
};

}  // namespace kvcache
