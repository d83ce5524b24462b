// Float linear layers for many tokens: packs activations, and multiplies them by panels of rows.
#include <algorithm>
#include <cstring>

#include "backend/cpu/common/token_tiles.h"
#include "backend/cpu/linear/linear_float.h"
#include "backend/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear/linear_float_panels.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// After it, so that it compiles once per target.
#include "backend/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcache::cpu::flt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): one idea, two files

// A tile's sums, rows × tokens, take 28 of 32 registers, or 12 of 16.
inline constexpr int kPanelRegs = kLanes == 4 ? 4 : 2;
inline constexpr std::int64_t kPanelRows = kPanelRegs * kLanes;
inline constexpr int kTileTokens = kLanes == 16 ? 14 : 6;

// ---- Packed form: [16 virtual lanes in bit-reversed order][steps of the lane][width]

// A pad behind each lane's values. It keeps lanes in different cache sets, and absorbs what a whole
// vector store writes past a tile that is narrower than the vector.
constexpr std::int64_t kLanePadFloats = 16;

constexpr std::int64_t Steps(std::int64_t inputs) {
  return (inputs + kVirtualLanes - 1) / kVirtualLanes;
}
// The number of inputs of virtual lane `lane`: lane, lane + 16, … below `inputs`.
constexpr std::int64_t LaneSteps(std::int64_t inputs, int lane) {
  return (inputs - lane + kVirtualLanes - 1) / kVirtualLanes;
}
constexpr std::int64_t LaneFloats(std::int64_t inputs, std::int64_t width) {
  return Steps(inputs) * width + kLanePadFloats;
}
constexpr int BitReversed4(int i) {
  return (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (i & 8) >> 3;
}

// Inputs that are transposed at once: a cache line of 16-bit weights. They are copied through a
// small buffer, since rows are mostly a power of two apart: sixteen lines of one cache set would
// evict each other before they are used up. Strides keep stores aligned.
constexpr std::int64_t kChunk = 32;
constexpr std::int64_t kChunkStride = kChunk + 16;

// Loads kLanes values: the four lanes b are four neighbouring inputs of row 4b. Four such vectors,
// from rows 0 to 3 on, transposed within their four lanes, are four inputs of kLanes rows.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* p) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    constexpr int kHalfRows = static_cast<int>(hn::MaxLanes(D())) / 2;
    return hn::Combine(d, LoadBlocks(half, p + kHalfRows * kChunkStride), LoadBlocks(half, p));
  }
}

// Writes four inputs of kLanes rows to the places of virtual lanes first_lane … + 3.
HWY_INLINE void TransposeFour(const float* chunk, int first_lane, std::int64_t lane_floats,
                              float* packed) {
  const DF d;
  const hn::Repartition<double, DF> dd;
  const VF v0 = LoadBlocks(d, chunk);
  const VF v1 = LoadBlocks(d, chunk + kChunkStride);
  const VF v2 = LoadBlocks(d, chunk + 2 * kChunkStride);
  const VF v3 = LoadBlocks(d, chunk + 3 * kChunkStride);
  const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, v2, v3));
  const VF out[4] = {hn::BitCast(d, hn::InterleaveLower(dd, low01, low23)),
                     hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23)),
                     hn::BitCast(d, hn::InterleaveLower(dd, high01, high23)),
                     hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23))};
  for (int i = 0; i < 4; ++i) {
    hn::StoreU(out[i], d, packed + BitReversed4(first_lane + i) * lane_floats);
  }
}

// Inputs [k, k + count) of kLanes rows; count is a multiple of 16, at most kChunk.
template <class Loader>
HWY_INLINE void PackChunk(const typename Loader::Stored* const* rows, std::int64_t k,
                          std::int64_t count, std::int64_t width, std::int64_t lane_floats,
                          float* packed) {
  const DF d;
  HWY_ALIGN float chunk[kLanes * kChunkStride];
  for (std::int64_t row = 0; row < kLanes; ++row) {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      hn::Store(Loader::Load(d, rows[row] + k + i), d, chunk + row * kChunkStride + i);
    }
  }
  for (std::int64_t i = 0; i < count; i += 4) {
    TransposeFour(chunk + i, static_cast<int>(i % kVirtualLanes), lane_floats,
                  packed + (k + i) / kVirtualLanes * width);
  }
}

// Packs `width` source rows (rows of a panel, or tokens). rows[i] is readable for i < width rounded
// up to kLanes; the content of the surplus rows does not matter. A store may write up to 16 floats
// past a step's width, into the next step or the pad.
template <class Loader>
void Pack(const typename Loader::Stored* const* rows, std::int64_t width, std::int64_t inputs,
          float* packed) {
  const std::int64_t lane_floats = LaneFloats(inputs, width);
  const std::int64_t whole = inputs / kVirtualLanes * kVirtualLanes;
  for (std::int64_t k = 0; k < whole; k += kChunk) {
    // The last rows come first: the first rows of the next step overwrite what they write past a
    // step's width.
    for (std::int64_t row = (width - 1) / kLanes * kLanes; row >= 0; row -= kLanes) {
      PackChunk<Loader>(rows + row, k, std::min(kChunk, whole - k), width, lane_floats,
                        packed + row);
    }
  }
  for (std::int64_t k = whole; k < inputs; ++k) {
    const int lane = static_cast<int>(k % kVirtualLanes);
    float* const step = packed + BitReversed4(lane) * lane_floats + k / kVirtualLanes * width;
    const hn::CappedTag<float, 1> d1;
    for (std::int64_t row = 0; row < width; ++row) {
      hn::StoreU(Loader::Load(d1, rows[row] + k), d1, step + row);
    }
  }
}

// ---- Activations

std::int64_t PackedTiles(std::int64_t tokens) {
  return TokenTiles(tokens, kTileTokens).count();
}

// The offset of tile `tile`, in floats.
std::int64_t TileOffset(std::int64_t inputs, const TokenTiles& tiles, std::int64_t tile) {
  return kVirtualLanes * (Steps(inputs) * tiles.Begin(tile) + tile * kLanePadFloats);
}

std::int64_t PackedFloats(std::int64_t inputs, std::int64_t tokens) {
  const TokenTiles tiles(tokens, kTileTokens);
  return TileOffset(inputs, tiles, tiles.count());
}

void PackTile(const float* x, std::int64_t inputs, std::int64_t tokens, std::int64_t tile,
              float* packed) {
  const TokenTiles tiles(tokens, kTileTokens);
  const std::int64_t size = tiles.Size(tile);
  const float* columns[kTileTokens + kLanes];
  for (int i = 0; i < kTileTokens + kLanes; ++i) {
    columns[i] = x + (tiles.Begin(tile) + std::min<std::int64_t>(i, size - 1)) * inputs;
  }
  Pack<LoadF32>(columns, size, inputs, packed + TileOffset(inputs, tiles, tile));
}

// ---- Products

// Both streams come from the second-level cache, or from the third for long rows.
constexpr std::int64_t kAheadSteps = 16;
constexpr std::int64_t kLineFloats = 16;

// Computes one virtual lane: chains of `steps` products for all rows and tokens of the tile.
template <int kTokens>
HWY_INLINE void RunLane(const float* panel, const float* x, std::int64_t steps,
                        VF (&sum)[kTokens][kPanelRegs]) {
  const DF d;
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) sum[t][r] = hn::Zero(d);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    VF w[kPanelRegs];
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) w[r] = hn::LoadU(d, panel + r * kLanes);
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const VF v = hn::Set(d, x[t]);
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) sum[t][r] = hn::MulAdd(w[r], v, sum[t][r]);
    }
    for (std::int64_t i = 0; i < kPanelRows; i += kLineFloats) {
      hwy::Prefetch(panel + kAheadSteps * kPanelRows + i);
    }
    hwy::Prefetch(x + kAheadSteps * kTokens);
    panel += kPanelRows;
    x += kTokens;
  }
}

// The partial results of a tile and a panel that wait for their partners in the tree of lanes:
// [level][token][panel row].
constexpr std::int64_t kLevels = 4;
constexpr std::int64_t kWaitingFloats = kLevels * kTileTokens * kPanelRows;

// Adds finished lane number `index` of the bit-reversed order to the waiting partial results, like
// the carry of a binary counter: one addition per trailing 1 of index. Returns the level at which
// the sum waits afterwards; kLevels if it is the total.
template <int kTokens>
HWY_INLINE int FoldLane(int index, const float* waiting, VF (&sum)[kTokens][kPanelRegs]) {
  const DF d;
  int level = 0;
  for (; (index >> level & 1) != 0; ++level) {
    KVCACHE_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVCACHE_UNROLL
      for (int r = 0; r < kPanelRegs; ++r) {
        const VF partner = hn::Load(d, waiting + t * kPanelRows + r * kLanes);
        sum[t][r] = hn::Add(partner, sum[t][r]);
      }
    }
    waiting += kTokens * kPanelRows;
  }
  return level;
}

// A tile of tokens, one panel, one virtual lane.
struct LaneProduct {
  int index;           // number of the lane in bit-reversed order
  std::int64_t steps;  // products per chain
  const float* panel;
  const float* x;
  float* waiting;
  std::int64_t rows;  // rows of the panel's part of y
  std::int64_t y_stride;
  float* y;
};

template <int kTokens>
HWY_NOINLINE void MultiplyLane(const LaneProduct& lane) {
  const DF d;
  VF sum[kTokens][kPanelRegs];
  RunLane<kTokens>(lane.panel, lane.x, lane.steps, sum);
  const int level = FoldLane<kTokens>(lane.index, lane.waiting, sum);
  // The total is copied through memory, since y may have fewer rows than the panel.
  float* const waiting = lane.waiting + level % kLevels * kTokens * kPanelRows;
  KVCACHE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVCACHE_UNROLL
    for (int r = 0; r < kPanelRegs; ++r) {
      hn::Store(sum[t][r], d, waiting + t * kPanelRows + r * kLanes);
    }
  }
  if (level < kLevels) return;
  for (int t = 0; t < kTokens; ++t) {
    std::copy_n(waiting + t * kPanelRows, std::min(lane.rows, kPanelRows),
                lane.y + t * lane.y_stride);
  }
}

// The size of the smallest tile of any batch of at least kMinPanelTokens.
constexpr int SmallestTile() {
  std::int64_t smallest = kTileTokens;
  for (std::int64_t tokens = kMinPanelTokens; tokens < 4 * kMinPanelTokens; ++tokens) {
    const TokenTiles tiles(tokens, kTileTokens);
    smallest = std::min(smallest, tiles.Size(tiles.count() - 1));
  }
  return static_cast<int>(smallest);
}

// Calls the kernel with the tile's size as a compile-time constant.
template <int kTokens>
void MultiplyLaneOf(std::int64_t tokens, const LaneProduct& lane) {
  if constexpr (kTokens > SmallestTile()) {
    if (tokens < kTokens) return MultiplyLaneOf<kTokens - 1>(tokens, lane);
  }
  MultiplyLane<kTokens>(lane);
}

template <class Loader>
void PackPanel(const Weights& w, std::int64_t row_begin, float* workspace) {
  using Stored = typename Loader::Stored;
  const Stored* rows[kPanelRows];
  for (std::int64_t i = 0; i < kPanelRows; ++i) {
    const std::int64_t row = std::min(row_begin + i, w.outputs - 1);
    rows[i] = reinterpret_cast<const Stored*>(w.rows) + row * w.inputs;
  }
  Pack<Loader>(rows, kPanelRows, w.inputs, workspace);
}

// The blocking of the loops. With short rows, a panel and a tile stay in the cache from lane to
// lane, so tiles are finished one by one. With long rows, only one lane's part of them fits: then
// lanes are the outer loop over several tiles, and each tile is read once for several panels.
struct Blocking {
  std::int64_t panels;  // panels of a group
  std::int64_t tiles;   // tiles whose partial results wait at the same time
};
constexpr std::int64_t kLongRow = 2048;
constexpr Blocking kShortRows = {1, 1};
constexpr Blocking kLongRows = {4, 8};
constexpr Blocking BlockingOf(std::int64_t inputs) {
  return inputs > kLongRow ? kLongRows : kShortRows;
}

std::int64_t PanelRows(std::int64_t inputs) {
  return kPanelRows * BlockingOf(inputs).panels;
}

std::int64_t PanelFloats(std::int64_t inputs) {
  const Blocking blocking = BlockingOf(inputs);
  return blocking.panels *
         (kVirtualLanes * LaneFloats(inputs, kPanelRows) + blocking.tiles * kWaitingFloats);
}

// Multiplies the tiles [begin, end), at most Blocking::tiles, with the group of panels packed in
// `workspace`.
void MultiplyTiles(const PanelProduct& product, std::int64_t row_begin, std::int64_t begin,
                   std::int64_t end, float* workspace) {
  const Weights& w = product.w;
  const TokenTiles tiles(product.tokens, kTileTokens);
  const std::int64_t panel_lane_floats = LaneFloats(w.inputs, kPanelRows);
  const std::int64_t panels = BlockingOf(w.inputs).panels;
  float* const waiting = workspace + panels * kVirtualLanes * panel_lane_floats;
  for (int index = 0; index < kVirtualLanes; ++index) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t size = tiles.Size(tile);
      const float* const x = product.packed + TileOffset(w.inputs, tiles, tile);
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t row = row_begin + p * kPanelRows;
        if (row >= w.outputs) break;
        MultiplyLaneOf<kTileTokens>(
            size, {.index = index,
                   .steps = LaneSteps(w.inputs, BitReversed4(index)),
                   .panel = workspace + (p * kVirtualLanes + index) * panel_lane_floats,
                   .x = x + index * LaneFloats(w.inputs, size),
                   .waiting = waiting + ((tile - begin) * panels + p) * kWaitingFloats,
                   .rows = w.outputs - row,
                   .y_stride = w.outputs,
                   .y = product.y + tiles.Begin(tile) * w.outputs + row});
      }
    }
  }
}

void MultiplyPanel(const PanelProduct& product, std::int64_t panel, std::int64_t tile_begin,
                   std::int64_t tile_end, float* workspace) {
  const Weights& w = product.w;
  const Blocking blocking = BlockingOf(w.inputs);
  const std::int64_t row_begin = panel * blocking.panels * kPanelRows;
  for (std::int64_t p = 0; p < blocking.panels; ++p) {
    const std::int64_t row = row_begin + p * kPanelRows;
    float* const packed = workspace + p * kVirtualLanes * LaneFloats(w.inputs, kPanelRows);
    if (row >= w.outputs) break;
    switch (w.dtype) {
      case DType::kF16: PackPanel<LoadF16>(w, row, packed); break;
      case DType::kBF16: PackPanel<LoadBF16>(w, row, packed); break;
      default: PackPanel<LoadF32>(w, row, packed); break;
    }
  }
  for (std::int64_t tile = tile_begin; tile < tile_end; tile += blocking.tiles) {
    MultiplyTiles(product, row_begin, tile, std::min(tile + blocking.tiles, tile_end), workspace);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::flt
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcache::cpu::flt {

HWY_EXPORT(PanelRows);
HWY_EXPORT(PanelFloats);
HWY_EXPORT(PackedTiles);
HWY_EXPORT(PackedFloats);
HWY_EXPORT(PackTile);
HWY_EXPORT(MultiplyPanel);

std::int64_t PanelRows(std::int64_t inputs) {
  return HWY_DYNAMIC_DISPATCH(PanelRows)(inputs);
}

std::int64_t PanelFloats(std::int64_t inputs) {
  return HWY_DYNAMIC_DISPATCH(PanelFloats)(inputs);
}

std::int64_t PackedTiles(std::int64_t tokens) {
  return HWY_DYNAMIC_DISPATCH(PackedTiles)(tokens);
}

std::int64_t PackedFloats(std::int64_t inputs, std::int64_t tokens) {
  return HWY_DYNAMIC_DISPATCH(PackedFloats)(inputs, tokens);
}

void PackTile(const float* x, std::int64_t inputs, std::int64_t tokens, std::int64_t tile,
              float* packed) {
  HWY_DYNAMIC_DISPATCH(PackTile)(x, inputs, tokens, tile, packed);
}

void MultiplyPanel(const PanelProduct& product, std::int64_t panel, std::int64_t tile_begin,
                   std::int64_t tile_end, float* workspace) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanel)(product, panel, tile_begin, tile_end, workspace);
}

}  // namespace kvcache::cpu::flt
#endif  // HWY_ONCE
