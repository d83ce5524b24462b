#include "backend/cuda/kv/copy.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/cpu/kv/kv_check.h"
#include "backend/cuda/kv/argument_list.h"
#include "backend/cuda/kv/cell_layout.h"
#include "backend/cuda/kv/copy_kernels.h"

namespace kvcache::cuda {
namespace {

constexpr Kernel kCopyUnitsKernel{"kv_copy_units", CopyUnitsArgs::kThreads};
constexpr Kernel kCopyTilesKernel{"kv_copy_tiles", CopyTilesArgs::kThreads};

// Bytes of a head that a block of threads copies.
constexpr std::int64_t kTilesPieceBytes = 32768;
// Cells that a block of threads copies unit by unit.
constexpr std::int32_t kUnitsPieceCells = kCellTile;

struct Both {
  CellParts from;
  CellParts to;
};

bool IsAligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

// Whether a tile lies in one piece on both sides, and pieces of 16 bytes can be copied.
bool HasTiles(const Both& parts) {
  return parts.from.tile_bytes > 0 && parts.from.tile_bytes == parts.to.tile_bytes &&
         parts.from.tile_bytes % 16 == 0 && IsAligned(parts.from.units.data) &&
         IsAligned(parts.to.units.data);
}

std::vector<Both> PartsOf(const LayerKv& from, const LayerKv& to) {
  std::vector<Both> parts = {{KeyParts(from), KeyParts(to)}};
  if (!from.shape.v_in_k) parts.push_back({ValueParts(from), ValueParts(to)});
  return parts;
}

struct Pieces {
  std::vector<CellMove> tiles;  // in tiles
  std::vector<CellMove> cells;
};

// Cuts moves into whole tiles, at most `max_tiles` at once, and other cells.
Pieces Cut(std::span<const CellMove> moves, std::int32_t max_tiles) {
  Pieces pieces;
  for (const CellMove& move : moves) {
    for (std::int32_t i = 0; i < move.length;) {
      const std::int32_t from = move.from + i;
      const std::int32_t to = move.to + i;
      const std::int32_t left = move.length - i;
      if (max_tiles > 0 && from % kCellTile == 0 && to % kCellTile == 0 && left >= kCellTile) {
        const std::int32_t tiles = std::min(max_tiles, left / kCellTile);
        pieces.tiles.push_back({from / kCellTile, to / kCellTile, tiles});
        i += tiles * kCellTile;
        continue;
      }
      // Up to the next tile, where whole tiles may begin.
      const std::int32_t count = std::min(kUnitsPieceCells - from % kUnitsPieceCells, left);
      pieces.cells.push_back({from, to, count});
      i += count;
    }
  }
  return pieces;
}

Status CopyWholeTiles(Device& device, CallMemory& memory, std::span<const Both> parts, int heads,
                      std::span<const CellMove> tiles) {
  CopyTilesArgs args{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    args.sides[i] = {.from = parts[i].from.units.data,
                     .to = parts[i].to.units.data,
                     .from_head = parts[i].from.units.head,
                     .to_head = parts[i].to.units.head,
                     .tile_bytes = parts[i].from.tile_bytes};
  }
  KVCACHE_ASSIGN_OR_RETURN(args.moves, (MakeList<decltype(args.moves)>(memory, tiles)));
  const Grid grid{.x = static_cast<std::int64_t>(tiles.size()),
                  .y = heads,
                  .z = static_cast<std::int64_t>(parts.size())};
  return Launch(device, kCopyTilesKernel, grid, args);
}

Status CopyUnits(Device& device, CallMemory& memory, std::span<const Both> parts, int heads,
                 std::span<const CellMove> cells) {
  CopyUnitsArgs args{};
  int sides = 0;
  for (const Both& both : parts) {
    args.sides[sides++] = {.from = both.from.units,
                           .to = both.to.units,
                           .units = both.from.unit_count,
                           .unit_bytes = both.from.unit_bytes};
    if (both.from.scale_count == 0) continue;
    args.sides[sides++] = {.from = both.from.scales,
                           .to = both.to.scales,
                           .units = both.from.scale_count,
                           .unit_bytes = 2};
  }
  KVCACHE_ASSIGN_OR_RETURN(args.moves, (MakeList<decltype(args.moves)>(memory, cells)));
  const Grid grid{.x = static_cast<std::int64_t>(cells.size()), .y = heads, .z = sides};
  return Launch(device, kCopyUnitsKernel, grid, args);
}

}  // namespace

Status CopyOnDevice(Device& device, CallMemory& memory, const LayerKv& from, const LayerKv& to,
                    std::span<const CellMove> moves) {
  const std::vector<Both> parts = PartsOf(from, to);
  std::int64_t tile_bytes = 0;  // of the larger one of K and V
  bool has_tiles = true;
  for (const Both& both : parts) {
    has_tiles = has_tiles && HasTiles(both);
    tile_bytes = std::max(tile_bytes, both.from.tile_bytes);
  }
  const std::int64_t max_tiles =
      has_tiles ? std::max<std::int64_t>(1, kTilesPieceBytes / tile_bytes) : 0;
  const Pieces pieces = Cut(moves, static_cast<std::int32_t>(max_tiles));
  const int heads = from.shape.kv_heads;
  if (!pieces.tiles.empty()) {
    KVCACHE_RETURN_IF_ERROR(CopyWholeTiles(device, memory, parts, heads, pieces.tiles));
  }
  if (pieces.cells.empty()) return Status::Ok();
  return CopyUnits(device, memory, parts, heads, pieces.cells);
}

Status CopyCells(Device& device, CallMemory& memory, const LayerKv& layer,
                 std::span<const CellMove> moves) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckTransfer(layer, layer, moves));
  return CopyOnDevice(device, memory, layer, layer, moves);
}

}  // namespace kvcache::cuda
