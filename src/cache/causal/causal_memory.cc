#include "cache/causal/causal_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvcache {

std::int64_t CausalMemory::UsedBytes() const {
  if (!parts_.storage.ready()) return 0;
  const std::int64_t used = parts_.cells.cells() - parts_.cells.free_cells();
  return AllocatedBytes() / std::max(1, parts_.cells.cells()) * used + SnapshotBytes();
}

std::int64_t CausalMemory::FreeCells() const {
  if (parts_.has_window()) return std::numeric_limits<std::int64_t>::max();
  return parts_.storage.ready() ? parts_.cells.free_cells() : 0;
}

std::int64_t CausalMemory::BlockBytes() const {
  const std::int64_t cells = RoundUp(std::int64_t{parts_.cells.cells()}, kReleasingCells);
  return AllocatedBytes() / cells * parts_.cells.free().block();
}

std::int64_t CausalMemory::ResidentBytes() const {
  const std::int64_t written =
      releases() ? parts_.cells.free().touched_blocks() * BlockBytes() : AllocatedBytes();
  return written + SnapshotBytes() +
         (parts_.pool == nullptr ? 0 : parts_.pool->host().memory.spare_bytes());
}

// If a window's pass finds too few free cells, it may move everything that snapshots hold.
std::int64_t CausalMemory::GrowthOf(std::span<const SequenceLength> more, int /*captures*/,
                                    int /*rounds*/) const {
  if (!releases()) return 0;
  std::int64_t tokens = 0;
  for (const SequenceLength& sequence : more) tokens += sequence.length;
  const CellTable& cells = parts_.cells;
  const std::int64_t moved =
      cells.free_cells() < tokens && !cells.holds().empty() ? UsedBytes() : 0;
  return cells.CountNewBlocks(more) * BlockBytes() + moved;
}

Status CausalMemory::ReleaseFreeMemory() {
  if (!releases()) return Status::Ok();
  pass_.End();
  Status status;
  parts_.cells.free().DropFreeBlocks([&](const CellRun& run) {
    Status released = parts_.storage.Release(run);
    const bool is_released = released.ok();
    if (status.ok()) status = std::move(released);
    return is_released;
  });
  return status;
}

// Bytes are copied to free cells first. The metadata changes only after all copies have succeeded.
Status CausalMemory::Compact() {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckReady());
  pass_.End();
  KVCACHE_ASSIGN_OR_RETURN(Compaction plan, parts_.cells.PlanCompaction());
  for (int layer = 0; layer < parts_.storage.layers().size() && !plan.moves.empty(); ++layer) {
    const LayerKv* storage = parts_.storage.layers().Find(layer);
    if (storage != nullptr) {
      KVCACHE_RETURN_IF_ERROR(parts_.storage.backend().CopyCells(*storage, plan.moves));
    }
  }
  parts_.cells.Apply(std::move(plan));
  return Status::Ok();
}

}  // namespace kvcache
