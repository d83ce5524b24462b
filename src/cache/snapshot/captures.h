// The captures that a causal cache has scheduled: snapshots that a pass takes when a sequence
// reaches a length (capture_schedule.h).
//
// Thread safety: none. Schedule, Plan and Take allocate.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cache/causal/causal_snapshot_pool.h"
#include "cache/snapshot/capture_schedule.h"

namespace kvcache {

class Captures {
 public:
  // `window` > 0: a capture is the last `window` tokens. May throw std::bad_alloc.
  void Reset(SnapshotPool* pool, const CellTable* cells, int sequences, int window);

  Status Schedule(SequenceId id, Position begin, std::span<const Position> lengths);
  Result<std::vector<std::unique_ptr<Snapshot>>> Take(SequenceId id);

  bool any() const { return schedule_.any(); }

  // Makes the snapshots of a sequence that is about to reach `length` tokens with `tokens` new ones.
  // Those of a window hold what is below `evicted` now. Errors: kOutOfMemory. Planned captures last
  // until Fire or DropPlanned.
  Status Plan(SequenceId id, Position length, std::size_t tokens, Position evicted);
  // Lets the planned snapshots hold their positions, which the sequences have now.
  void Fire();
  void DropPlanned();

  // Takes back the captures above the sequence's new length, or all of them.
  void Truncate(SequenceId id, Position length) { schedule_.Truncate(id, length); }
  void Cancel(SequenceId id) { schedule_.Cancel(id); }
  void Clear();

 private:
  struct Planned {
    SequenceId id{};
    SnapshotPool::OwnPtr snapshot;
    Position first = 0;    // the first position to hold
    Position evicted = 0;  // positions below are held already
  };

  SnapshotPool* pool_ = nullptr;
  const CellTable* cells_ = nullptr;
  int window_ = 0;
  CaptureSchedule<CausalSnapshot> schedule_;
  std::vector<Planned> planned_;
};

}  // namespace kvcache
