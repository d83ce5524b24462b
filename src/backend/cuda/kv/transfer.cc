// Copies cells between the device and host memory. The host's tiles are assembled, or taken apart, in the
// device's memory, so that what crosses the link is whole tiles in few pieces.
//
// A host tile of which a transfer writes some cells keeps the others: the host copies them aside first.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/cpu/common/kv_blocks.h"
#include "backend/cpu/kv/kv_check.h"
#include "backend/cpu/kv/kv_kernels.h"
#include "backend/cuda/kv/copy.h"
#include "backend/cuda/kv/host_pieces.h"

namespace kvcache::cuda {
namespace {

// The most memory of the device that a transfer takes for tiles.
constexpr std::int64_t kStagingBytes = std::int64_t{64} << 20;

// Tiles [begin, end) of the host's layer, at tile `staged` of the staging layer.
struct TileRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t staged = 0;
  std::int32_t size() const { return end - begin; }
};

enum class Direction { kToHost, kToDevice };

std::int32_t HostCell(const CellMove& move, Direction direction) {
  return direction == Direction::kToHost ? move.to : move.from;
}

// Cuts moves so that each piece's host cells lie in one group of `tiles` tiles, and orders them by host cell.
std::vector<CellMove> CutByGroup(std::span<const CellMove> moves, Direction direction,
                                 std::int32_t tiles) {
  std::vector<CellMove> pieces;
  const std::int32_t group = tiles * kCellTile;
  for (const CellMove& move : moves) {
    for (std::int32_t i = 0; i < move.length;) {
      const std::int32_t host = HostCell(move, direction) + i;
      const std::int32_t count = std::min(group - host % group, move.length - i);
      pieces.push_back({move.from + i, move.to + i, count});
      i += count;
    }
  }
  std::sort(pieces.begin(), pieces.end(), [&](const CellMove& a, const CellMove& b) {
    return HostCell(a, direction) < HostCell(b, direction);
  });
  return pieces;
}

// The host tiles that the moves touch. REQUIRES: the moves are ordered by host cell.
std::vector<TileRange> TilesOf(std::span<const CellMove> moves, Direction direction) {
  std::vector<TileRange> ranges;
  std::int32_t staged = 0;
  for (const CellMove& move : moves) {
    const std::int32_t host = HostCell(move, direction);
    std::int32_t begin = host / kCellTile;
    const std::int32_t end = (host + move.length + kCellTile - 1) / kCellTile;
    if (!ranges.empty()) begin = std::max(begin, ranges.back().end);
    if (begin >= end) continue;
    if (ranges.empty() || ranges.back().end != begin) ranges.push_back({begin, begin, staged});
    ranges.back().end = end;
    staged += end - begin;
  }
  return ranges;
}

// The staging layer holds the ranges' tiles one after another.
std::int32_t StagedCell(std::span<const TileRange> ranges, std::int32_t host_cell) {
  const std::int32_t tile = host_cell / kCellTile;
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), tile,
      [](std::int32_t value, const TileRange& range) { return value < range.begin; });
  const TileRange& range = *(after - 1);
  return (range.staged + tile - range.begin) * kCellTile + host_cell % kCellTile;
}

std::int64_t TileBytes(const LayerKv& layer) {
  const KvShape& shape = layer.shape;
  return shape.kv_heads * (cpu::BlockTileBytes(layer.k_type, shape.k_dim) +
                           (shape.v_in_k ? 0 : cpu::BlockTileBytes(layer.v_type, shape.v_dim)));
}

// One of a layer's two arrays in the tiled layout: heads of tiles.
struct TileArray {
  std::byte* data;
  std::int64_t tile_bytes;
  std::int64_t head_bytes;
};

std::vector<TileArray> ArraysOf(const LayerKv& layer) {
  const std::int64_t tiles = layer.cells / kCellTile;
  const std::int64_t k = cpu::BlockTileBytes(layer.k_type, layer.shape.k_dim);
  const std::int64_t v = cpu::BlockTileBytes(layer.v_type, layer.shape.v_dim);
  std::vector<TileArray> arrays = {{layer.k, k, k * tiles}};
  if (!layer.shape.v_in_k) arrays.push_back({layer.v, v, v * tiles});
  return arrays;
}

// A layer of the shape and types of `like` for `tiles` tiles at `data`, tiled. Tiles of all types are multiples of
// 16 bytes, so values begin where keys end, and are aligned.
LayerKv LayerAt(const LayerKv& like, std::int32_t tiles, std::byte* data) {
  LayerKv layer = like;
  layer.layout = KvLayout::kTiled;
  layer.v_transposed = false;
  layer.cells = std::int64_t{tiles} * kCellTile;
  layer.k = data;
  layer.v = layer.shape.v_in_k ? nullptr : data + layer.KBytes();
  return layer;
}

// The host's tiles of the ranges, in the order in which a staging layer of as many tiles has them: an array in whole
// if its tiles are all in one range, else piece by piece.
HostPieces PiecesOf(const LayerKv& host, std::span<const TileRange> ranges, std::int64_t tiles) {
  HostPieces pieces;
  const bool whole = ranges.size() == 1 && tiles * kCellTile == host.cells;
  const int heads = whole ? 1 : host.shape.kv_heads;
  for (const TileArray& array : ArraysOf(host)) {
    for (int head = 0; head < heads; ++head) {
      for (const TileRange& range : ranges) {
        const std::int64_t size =
            whole ? host.shape.kv_heads * array.head_bytes : range.size() * array.tile_bytes;
        pieces.Add({array.data + head * array.head_bytes + range.begin * array.tile_bytes,
                    static_cast<std::size_t>(size)});
      }
    }
  }
  return pieces;
}

// The host cells of the ranges that no move writes, as moves from the host to itself. REQUIRES: as TilesOf.
std::vector<CellMove> KeptCells(std::span<const CellMove> moves,
                                std::span<const TileRange> ranges) {
  std::vector<CellMove> kept;
  std::size_t next = 0;
  for (const TileRange& range : ranges) {
    std::int32_t cell = range.begin * kCellTile;
    const std::int32_t end = range.end * kCellTile;
    for (; next < moves.size() && moves[next].to < end; ++next) {
      const CellMove& move = moves[next];
      if (move.to > cell) kept.push_back({cell, cell, move.to - cell});
      cell = std::max(cell, move.to + move.length);
    }
    if (end > cell) kept.push_back({cell, cell, end - cell});
  }
  return kept;
}

// Copies of the kept cells' tiles in host memory.
class KeptTiles {
 public:
  KeptTiles(ThreadPool& pool, const LayerKv& layer, std::vector<CellMove> cells)
      : pool_(pool), layer_(layer), cells_(std::move(cells)) {}

  Status Save() {
    if (cells_.empty()) return Status::Ok();
    std::int32_t tiles = 0;
    for (CellMove& move : cells_) {  // to a place of its own, in the same lanes
      move.to = tiles * kCellTile + move.from % kCellTile;
      tiles = (move.to + move.length + kCellTile - 1) / kCellTile;
    }
    memory_.resize(static_cast<std::size_t>(tiles * TileBytes(layer_)));
    saved_ = LayerAt(layer_, tiles, memory_.data());
    return cpu::TransferCells(pool_, layer_, saved_, cells_);
  }

  Status Restore() {
    if (cells_.empty()) return Status::Ok();
    for (CellMove& move : cells_) std::swap(move.from, move.to);
    return cpu::TransferCells(pool_, saved_, layer_, cells_);
  }

 private:
  ThreadPool& pool_;
  LayerKv layer_;
  std::vector<CellMove> cells_;
  std::vector<std::byte> memory_;
  LayerKv saved_;
};

// A transfer of cells whose host tiles fit in the staging memory.
struct GroupTransfer {
  Device& device;
  CallMemory& memory;
  const LayerKv& from;
  const LayerKv& to;
  std::byte* staging_memory;

  Status ToHost(std::span<const CellMove> moves) const {
    const std::vector<TileRange> ranges = TilesOf(moves, Direction::kToHost);
    const LayerKv staging = StagingFor(to, ranges);
    std::vector<CellMove> staged(moves.begin(), moves.end());
    for (CellMove& move : staged) move.to = StagedCell(ranges, move.to);
    KVCACHE_RETURN_IF_ERROR(CopyOnDevice(device, memory, from, staging, staged));
    KeptTiles kept(device.pool(), to, KeptCells(moves, ranges));
    KVCACHE_RETURN_IF_ERROR(kept.Save());
    KVCACHE_RETURN_IF_ERROR(
        PiecesOf(to, ranges, staging.cells / kCellTile).CopyOut(device, staging_memory));
    return kept.Restore();
  }

  Status ToDevice(std::span<const CellMove> moves) const {
    const std::vector<TileRange> ranges = TilesOf(moves, Direction::kToDevice);
    const LayerKv staging = StagingFor(from, ranges);
    std::vector<CellMove> staged(moves.begin(), moves.end());
    for (CellMove& move : staged) move.from = StagedCell(ranges, move.from);
    KVCACHE_RETURN_IF_ERROR(
        PiecesOf(from, ranges, staging.cells / kCellTile).CopyIn(device, staging_memory));
    return CopyOnDevice(device, memory, staging, to, staged);
  }

 private:
  LayerKv StagingFor(const LayerKv& host, std::span<const TileRange> ranges) const {
    LayerKv layer = LayerAt(host, ranges.back().staged + ranges.back().size(), staging_memory);
    layer.on_host = false;
    return layer;
  }
};

}  // namespace

Status TransferCells(Device& device, CallMemory& memory, const LayerKv& from, const LayerKv& to,
                     std::span<const CellMove> moves) {
  KVCACHE_RETURN_IF_ERROR(cpu::CheckTransfer(from, to, moves));
  if (from.on_host && to.on_host) return cpu::TransferCells(device.pool(), from, to, moves);
  if (!from.on_host && !to.on_host) return CopyOnDevice(device, memory, from, to, moves);
  const LayerKv& host_layer = from.on_host ? from : to;
  if (host_layer.layout != KvLayout::kTiled) {
    return {StatusCode::kUnsupported, "transfer: the layer on the host must be tiled"};
  }
  const Direction direction = from.on_host ? Direction::kToDevice : Direction::kToHost;
  const std::int64_t layer_tiles = host_layer.cells / kCellTile;
  const auto tiles = static_cast<std::int32_t>(std::clamp<std::int64_t>(
      kStagingBytes / TileBytes(host_layer), 1, std::max<std::int64_t>(1, layer_tiles)));
  const std::vector<CellMove> pieces = CutByGroup(moves, direction, tiles);
  if (pieces.empty()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(std::byte* const staging,
                           memory.Take(static_cast<std::size_t>(tiles * TileBytes(host_layer))));
  const GroupTransfer transfer{device, memory, from, to, staging};
  for (std::size_t begin = 0; begin < pieces.size();) {
    const auto group = [&](std::size_t i) {
      return HostCell(pieces[i], direction) / (tiles * kCellTile);
    };
    std::size_t end = begin;
    while (end < pieces.size() && group(end) == group(begin)) ++end;
    const std::span<const CellMove> part = std::span(pieces).subspan(begin, end - begin);
    KVCACHE_RETURN_IF_ERROR(direction == Direction::kToHost ? transfer.ToHost(part)
                                                            : transfer.ToDevice(part));
    begin = end;
  }
  return Status::Ok();
}

}  // namespace kvcache::cuda
