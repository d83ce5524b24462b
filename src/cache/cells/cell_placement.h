// Which free cell a token gets.
//
// Thread safety: none; const functions only, after Reset.
#pragma once

#include <cstdint>

#include "cache/cells/free_cells.h"
#include "cache/cells/run_list.h"
#include "kvcache/types.h"

namespace kvcache {

// The preferred cells of a sequence, from the sequence's first cell on.
enum class Placement : std::uint8_t {
  kLinear,  // cell = first cell + position
  kRing,    // cell = first cell + position modulo the stride; for sequences with a window
};

class CellPlacement {
 public:
  void Reset(Placement placement, std::int64_t sequence_stride, std::int32_t cells) {
    placement_ = placement;
    sequence_stride_ = sequence_stride;
    cells_ = cells;
  }

  // Return a cell for a token, or for a draft. `previous` is the cell of the preceding token, or
  // RunList::kNoCell. REQUIRES: there is a free cell.
  std::int32_t Place(const FreeCells& free, SequenceId id, Position position,
                     std::int32_t previous) const;
  std::int32_t PlaceDraft(const FreeCells& free, SequenceId id, Position position,
                          std::int32_t previous) const;
  // Returns the rank of `cell` in the order of Place for tokens from `position` on; 0 is first.
  std::int64_t Rank(SequenceId id, Position position, std::int32_t previous,
                    std::int32_t cell) const;

 private:
  // Rings that are a power of two apart and grow in step would use the same few cache sets for the
  // tables of cells. An odd number of cache lines between the starts of neighbouring rings prevents that.
  static constexpr std::int64_t kRingSkew = 5 * 64 / sizeof(std::int32_t);

  std::int32_t PreferredCell(SequenceId id, Position position) const;
  // The first cell of the sequence's ring.
  std::int32_t RingOf(SequenceId id) const {
    return static_cast<std::int32_t>(Index(id) * sequence_stride_);
  }

  Placement placement_ = Placement::kLinear;
  std::int64_t sequence_stride_ = 0;
  std::int32_t cells_ = 0;
};

// In the header, because every token calls them.
inline std::int32_t CellPlacement::PreferredCell(SequenceId id, Position position) const {
  if (placement_ == Placement::kLinear) {
    return static_cast<std::int32_t>((Index(id) * sequence_stride_ + position) % cells_);
  }
  const std::int64_t offset = position + std::int64_t{Index(id)} * kRingSkew;
  return RingOf(id) + static_cast<std::int32_t>(offset % sequence_stride_);
}

inline std::int32_t CellPlacement::Place(const FreeCells& free, SequenceId id, Position position,
                                         std::int32_t previous) const {
  // Past the end of its ring, a sequence would claim its neighbour's cells. So the preferred cell,
  // which wraps around, comes before the cell after the predecessor's.
  if (placement_ == Placement::kRing) {
    const std::int32_t preferred = PreferredCell(id, position);
    if (free.Contains(preferred)) return preferred;
  }
  if (previous != RunList::kNoCell && previous + 1 < cells_ && free.Contains(previous + 1)) {
    return previous + 1;
  }
  if (free.tracks_words()) {
    const std::int32_t word = free.FirstFreeWord();
    return word == FreeSet::kNone ? free.NextFrom(0) : word + position % kCellTile;
  }
  const std::int32_t cell = free.NextFrom(PreferredCell(id, position));
  return cell != FreeSet::kNone ? cell : free.NextFrom(0);
}

}  // namespace kvcache
