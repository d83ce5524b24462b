#include "engine/prefixes/scheduled_captures.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvcache {

void ScheduledCaptures::Schedule(Cache& cache, SequenceId sequence, std::vector<Position> lengths) {
  lengths_ = std::move(lengths);
  if (lengths_.empty()) return;
  if (!cache.snapshots()->ScheduleCaptures(sequence, kEachFromZero, lengths_).ok())
    lengths_.clear();
}

void ScheduledCaptures::Take(Cache& cache, SequenceId sequence, Position length,
                             SnapshotStates& states, PrefixCache& prefixes, PrefixRequest request,
                             const Look& look) {
  const auto passed = std::upper_bound(lengths_.begin(), lengths_.end(), length);
  if (passed == lengths_.begin()) return;
  if (auto taken = cache.snapshots()->TakeCaptures(sequence); !taken.ok()) {
    cache.snapshots()->CancelCaptures(sequence);
  } else {
    for (auto at = lengths_.begin(); at != passed; ++at) {
      auto& snapshot = (*taken)[static_cast<std::size_t>(at - lengths_.begin())];
      if (snapshot == nullptr) continue;
      if (look) look(*snapshot, *at);
      auto state = states.Add(std::move(snapshot), sequence);
      if (state.ok()) (void)prefixes.Extend(request, *at, *state).ok();
    }
  }
  lengths_.erase(lengths_.begin(), passed);
  Schedule(cache, sequence, std::move(lengths_));
}

void ScheduledCaptures::Cancel(Cache& cache, SequenceId sequence) {
  lengths_.clear();
  cache.snapshots()->CancelCaptures(sequence);
}

}  // namespace kvcache
