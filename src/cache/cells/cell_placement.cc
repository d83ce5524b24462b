#include "cache/cells/cell_placement.h"

#include "cache/cells/run_list.h"

namespace kvcache {

// Alternatives share one preferred cell. In a ring, the second one gets the next free cell of the
// ring, wrapping around at its end.
std::int32_t CellPlacement::PlaceDraft(const FreeCells& free, SequenceId id, Position position,
                                       std::int32_t previous) const {
  if (placement_ == Placement::kRing) {
    const std::int32_t preferred = PreferredCell(id, position);
    const std::int64_t end = RingOf(id) + sequence_stride_;
    std::int32_t cell = free.NextFrom(preferred);
    if (cell != FreeSet::kNone && cell < end) return cell;
    cell = free.NextFrom(RingOf(id));
    if (cell != FreeSet::kNone && cell < preferred) return cell;
  }
  return Place(free, id, position, previous);
}

std::int64_t CellPlacement::Rank(SequenceId id, Position position, std::int32_t previous,
                                 std::int32_t cell) const {
  const std::int32_t preferred = PreferredCell(id, position);
  if (placement_ == Placement::kRing) {
    const bool inside = cell >= RingOf(id) && cell < RingOf(id) + sequence_stride_;
    if (inside) return (cell - preferred + sequence_stride_) % sequence_stride_;
    return sequence_stride_ + (std::int64_t{cell} - preferred + cells_) % cells_;
  }
  const std::int32_t first = previous == RunList::kNoCell ? preferred : previous + 1;
  return (std::int64_t{cell} - first + cells_) % cells_;
}

}  // namespace kvcache
