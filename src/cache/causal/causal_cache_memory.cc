// The bytes that the causal cache takes, and gives back to the system.
#include <algorithm>
#include <utility>

#include "cache/causal/causal_cache_impl.h"

namespace kvcache {

std::int64_t CausalCache::UsedBytes() const {
  if (!storage_.ready()) return 0;
  const std::int64_t used = cells_.cells() - cells_.free_cells();
  return AllocatedBytes() / std::max(1, cells_.cells()) * used + SnapshotBytes();
}

std::int64_t CausalCache::BlockBytes() const {
  const std::int64_t cells = RoundUp(std::int64_t{cells_.cells()}, kReleasingCells);
  return AllocatedBytes() / cells * cells_.block();
}

std::int64_t CausalCache::ResidentBytes() const {
  if (storage_.layers().releasable_cells() == 0)
    return AllocatedBytes() + SnapshotBytes() + SpareBytes();
  return cells_.touched_blocks() * BlockBytes() + SnapshotBytes() + SpareBytes();
}

// If a window's pass finds too few free cells, it may move everything that snapshots hold.
std::int64_t CausalCache::GrowthOf(std::span<const SequenceLength> more, int /*captures*/,
                                   int /*rounds*/) const {
  if (storage_.layers().releasable_cells() == 0) return 0;
  std::int64_t tokens = 0;
  for (const SequenceLength& sequence : more) tokens += sequence.length;
  const std::int64_t moved = cells_.free_cells() < tokens && cells_.has_holds() ? UsedBytes() : 0;
  return cells_.CountNewBlocks(more) * BlockBytes() + moved;
}

Status CausalCache::ReleaseFreeMemory() {
  if (storage_.layers().releasable_cells() == 0) return Status::Ok();
  EndPass();
  Status status;
  cells_.DropFreeBlocks([&](const CellRun& run) {
    Status released = storage_.Release(run);
    const bool is_released = released.ok();
    if (status.ok()) status = std::move(released);
    return is_released;
  });
  return status;
}

}  // namespace kvcache
