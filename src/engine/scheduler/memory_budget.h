// Which cells and bytes the next pass may take.
//
// Thread safety: the engine's thread.
// Design: docs/design/memory.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/prefixes/snapshot_states.h"
#include "engine/scheduler/memory_governor.h"
#include "engine/scheduler/pass/pass_runner.h"

namespace kvcache {

class MemoryBudget {
 public:
  // The arguments must outlive it. Throws std::bad_alloc.
  MemoryBudget(Engine& engine, const SchedulerOptions& options, const SnapshotStates& states,
               PassRunner& runner);

  // Returns the bytes that the cache takes, as the budget counts them.
  std::int64_t HeldBytes() const;
  // Returns whether the pool has `cells` free cells and the budget the bytes of a pass of these rows.
  bool HasRoom(std::int64_t cells, std::span<const PassRows> rows);
  // Gives free memory back to the system. Returns whether it could.
  bool Release();
  // Returns whether memory goes back to the system, and the cache takes more than the budget.
  bool IsOver();
  // Changes the bytes that the cache may take; 0: any number.
  void SetMax(std::int64_t bytes) { governor_.SetMax(bytes); }
  // Returns the budget while the cache takes `held` bytes; 0: none.
  std::int64_t Bytes(std::int64_t held);

 private:
  // Returns a bound of the bytes that a pass of these rows adds.
  std::int64_t Growth(std::int64_t cells, std::span<const PassRows> rows);

  Engine& engine_;
  const SnapshotStates& states_;
  PassRunner& runner_;
  const std::int64_t bytes_per_token_;
  MemoryGovernor governor_;
  const bool spills_;                    // the cache makes room in the pool
  std::vector<SequenceLength> growing_;  // scratch
};

}  // namespace kvcache
