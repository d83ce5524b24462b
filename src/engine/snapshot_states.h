// The states of a PrefixCache that are snapshots of a Cache, each of [0, length) of its sequence.
//
// Thread safety: that of the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "kvcache/cache.h"
#include "kvcache/prefix_cache.h"
#include "kvcache/snapshot.h"

namespace kvcache {

class SnapshotStates final : public PrefixStates {
 public:
  // `cache` must outlive it.
  explicit SnapshotStates(Cache& cache) : cache_(cache) {}

  // Takes a snapshot of the sequence's first `length` tokens. Errors: those of Cache::TakeSnapshot.
  Result<PrefixState> Take(SequenceId sequence, Position length);
  // Takes over a snapshot that begins at 0. REQUIRES: not null. Errors: kOutOfMemory.
  Result<PrefixState> Add(std::unique_ptr<Snapshot> snapshot);
  // Brings the empty sequence to `length` tokens of the state. Errors: those of Cache::Restore.
  Status Restore(PrefixState state, SequenceId sequence, Position length);

  // Returns the snapshot of a state, or null.
  const Snapshot* Find(PrefixState state) const;

  void Drop(PrefixState state) override;
  bool Truncate(PrefixState state, Position length) override;

 private:
  Cache& cache_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Snapshot>> snapshots_;
  std::uint64_t last_ = 0;
};

}  // namespace kvcache
