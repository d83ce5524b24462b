// The states of a PrefixCache that are snapshots of a Cache, each of [0, length) of its sequence. With a
// draft head, a state also has the model's final state of its last token, if that is known: the head reads it
// with the next token.
//
// Thread safety: that of the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/cache.h"
#include "kvcache/prefix_cache.h"
#include "kvcache/snapshot.h"

namespace kvcache {

class HiddenStates;

class SnapshotStates final : public PrefixStates {
 public:
  // `cache` and `last_states` must outlive it. The latter are null without a draft head.
  explicit SnapshotStates(Cache& cache, HiddenStates* last_states = nullptr)
      : cache_(cache), last_states_(last_states) {}

  // Takes a snapshot of the sequence's first `length` tokens. Errors: those of CacheSnapshots::TakeSnapshot.
  Result<PrefixState> Take(SequenceId sequence, Position length);
  // Takes over a snapshot of the sequence that begins at 0. REQUIRES: not null; the sequence has not gone back
  // before the snapshot's end since. Errors: kOutOfMemory.
  Result<PrefixState> Add(std::unique_ptr<Snapshot> snapshot, SequenceId sequence);
  // Brings the empty sequence to `length` tokens of the state. Errors: those of CacheSnapshots::Restore.
  Status Restore(PrefixState state, SequenceId sequence, Position length);

  // Returns the snapshot of a state, or null.
  const Snapshot* Find(PrefixState state) const;
  // Returns the final state of the last of the state's first `length` tokens; empty if it is not known.
  std::span<const float> LastState(PrefixState state, Position length) const;
  // Returns the bytes of all final states.
  std::int64_t last_state_bytes() const { return last_state_bytes_; }

  void Drop(PrefixState state) override;
  bool Truncate(PrefixState state, Position length) override;

 private:
  struct Held {
    std::unique_ptr<Snapshot> snapshot;
    std::vector<float> last;  // the final state of its last token; empty: not known
  };

  // Lets go of the final state.
  void DropLast(Held& held);

  Cache& cache_;
  HiddenStates* const last_states_;
  std::unordered_map<std::uint64_t, Held> states_;
  std::uint64_t last_ = 0;
  std::int64_t last_state_bytes_ = 0;
};

}  // namespace kvcache
