// Copies cells: whole tiles 16 bytes at a time, other cells unit by unit.
#include "backend/cuda/kv/copy_kernels.h"

#include "backend/cuda/kv/cell_array-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

template <class Unit>
KVCACHE_DEVICE void CopyUnits(const UnitsCopy& copy, const CellMove& move, int head) {
  // Neighbouring threads read and write neighbouring bytes, of the target at least.
  const bool by_unit = move.length == 1 || copy.to.unit < copy.to.cell;
  for (int i = Thread(); i < move.length * copy.units; i += CopyUnitsArgs::kThreads) {
    const int cell = by_unit ? i / copy.units : i % move.length;
    const int unit = by_unit ? i % copy.units : i / move.length;
    *reinterpret_cast<Unit*>(At(copy.to, head, move.to + cell, unit)) =
        *reinterpret_cast<const Unit*>(At(copy.from, head, move.from + cell, unit));
  }
}

// Blocks: (move, head, side).
KVCACHE_KERNEL(kv_copy_units, CopyUnitsArgs, CopyUnitsArgs::kThreads) {
  const UnitsCopy& copy = args.sides[BlockZ()];
  const CellMove move = At(args.moves, BlockX());
  const int head = BlockY();
  if (copy.unit_bytes == 4) {
    CopyUnits<std::uint32_t>(copy, move, head);
  } else if (copy.unit_bytes == 2) {
    CopyUnits<std::uint16_t>(copy, move, head);
  } else {
    CopyUnits<std::uint8_t>(copy, move, head);
  }
}

struct alignas(16) SixteenBytes {
  std::uint32_t words[4];
};

// Blocks: (move, head, side).
KVCACHE_KERNEL(kv_copy_tiles, CopyTilesArgs, CopyTilesArgs::kThreads) {
  const TilesCopy& copy = args.sides[BlockZ()];
  const CellMove move = At(args.moves, BlockX());
  const std::int64_t head = BlockY();
  const auto* const from = reinterpret_cast<const SixteenBytes*>(copy.from + head * copy.from_head +
                                                                 move.from * copy.tile_bytes);
  auto* const to =
      reinterpret_cast<SixteenBytes*>(copy.to + head * copy.to_head + move.to * copy.tile_bytes);
  const int count = static_cast<int>(move.length * copy.tile_bytes / 16);
  for (int i = Thread(); i < count; i += CopyTilesArgs::kThreads) to[i] = from[i];
}

}  // namespace kvcache::cuda
