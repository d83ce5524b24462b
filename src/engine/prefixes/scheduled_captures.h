// The captures of one request: the lengths of a PrefixPlan, scheduled in a cache, whose snapshots go to
// the prefix cache once the sequence has passed them. Captures serve later requests: without memory for
// them the request continues.
//
// Thread safety: that of the cache.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/prefixes/snapshot_states.h"
#include "kvcache/cache.h"
#include "kvcache/prefix_cache.h"

namespace kvcache {

class ScheduledCaptures {
 public:
  // Schedules snapshots of [0, length) of the sequence for these lengths, ascending.
  void Schedule(Cache& cache, SequenceId sequence, std::vector<Position> lengths);
  // Gives those up to `length`, which the sequence has evaluated, to the request's prefix. The others
  // stay scheduled.
  // `look`, if there is one, sees each of them first.
  using Look = std::function<void(const Snapshot& state, Position length)>;
  void Take(Cache& cache, SequenceId sequence, Position length, SnapshotStates& states,
            PrefixCache& prefixes, PrefixRequest request, const Look& look = {});
  // Drops all.
  void Cancel(Cache& cache, SequenceId sequence);

  std::span<const Position> lengths() const { return lengths_; }

 private:
  std::vector<Position> lengths_;
};

}  // namespace kvcache
