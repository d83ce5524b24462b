// The product of block-quantised weights with many tokens by the matrix tiles of AMX: the work is cut as in
// block/multiply-inl.h, with tiles of 16 tokens × 2 panels.
//
// Inputs are the first factor of a tile's product (a row is a token), an unpacked panel is the second: its lines are
// four inputs of 16 rows, which is what the instruction wants. The inputs that share a scale, 32 or 16, are one
// product; its sums go to memory, where vectors fold them (fold-inl.h).
//
// A step is a tile with the products of four scales. While the tiles compute a step, vectors fold the one before:
// the processor overlaps the two because their instructions alternate.
#if defined(KVCACHE_BACKEND_CPU_TILES_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCACHE_BACKEND_CPU_TILES_MULTIPLY_INL_H_
#undef KVCACHE_BACKEND_CPU_TILES_MULTIPLY_INL_H_
#else
#define KVCACHE_BACKEND_CPU_TILES_MULTIPLY_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/linear/block/multiply-inl.h"
#include "backend/cpu/linear/tiles/fold-inl.h"
#include "backend/cpu/linear/tiles/format-inl.h"
#include "backend/cpu/linear/tiles/unpack-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

KVCACHE_BEFORE_DOT();
namespace kvcache::cpu::block {
namespace HWY_NAMESPACE {

// The registers of a product: two sets of sums and inputs, so that a product need not wait for the store of the one
// before the last, and the weights of both panels.
template <int kSet>
struct TileRegisters {
  static constexpr int kSums0 = 2 * kSet;  // of the first panel
  static constexpr int kSums1 = 2 * kSet + 1;
  static constexpr int kInputs = 4 + kSet;
  static constexpr int kWeights0 = 6;
  static constexpr int kWeights1 = 7;
};

// The shapes of the registers for tiles of at most `tokens`. A smaller tile computes a row more than it has: its
// inputs are those that follow the tile, or, behind the last tile, reserved bytes that nobody wrote. Its sums are ignored.
template <Chain kChain>
MatrixTileShapes ShapesFor(std::int64_t tokens) {
  static_assert(QuantizedX::kMaxValueBytes >= 2 * std::int64_t{sizeof(Value)},
                "the row behind the last value must be reserved");
  MatrixTileShapes shapes;
  for (const std::size_t sums : {0, 1, 2, 3}) shapes.Set(sums, tokens, kLine);
  for (const std::size_t inputs : {4, 5}) shapes.Set(inputs, tokens, 4 * GroupsOf(kChain));
  for (const std::size_t weights : {6, 7}) shapes.Set(weights, GroupsOf(kChain), kLine);
  return shapes;
}

// The inputs of the step's scale `s`.
template <Chain kChain>
HWY_INLINE const Value* InputsOf(const TileStep& step, std::int64_t s) {
  const std::int64_t from = (step.first + s) * 4 * GroupsOf(kChain);
  return step.x.values + from / kBlock * step.tokens * kBlock + from % kBlock;
}

// Computes the sums of scale kSet of a part with all tokens. `weights` are those of the part in the first panel's
// ChunkWorkspace, which the second's follows; `sums` are TileWorkspace's.
template <Chain kChain, int kSet, int kPanels>
HWY_INLINE void MultiplyScale(const Value* inputs, const std::uint8_t* weights, std::int32_t* sums,
                              const TileStrides& strides) {
  using Use = TileRegisters<kSet>;
  constexpr std::int64_t kWeights = kSet * GroupsOf(kChain) * kLine;
  constexpr std::int64_t kTileBytes = kMatrixTileTokens * kLine;
  constexpr std::int64_t kSums = kSet * kTilePanels * kTileBytes;
  LoadTile<Use::kInputs>(inputs, strides.inputs);
  LoadTile<Use::kWeights0, kWeights>(weights, strides.lines);
  ZeroTile<Use::kSums0>();
  AddTileProducts<Use::kSums0, Use::kInputs, Use::kWeights0>();
  if constexpr (kPanels == 2) {
    LoadTile<Use::kWeights1, kWeights + sizeof(ChunkWorkspace)>(weights, strides.lines);
    ZeroTile<Use::kSums1>();
    AddTileProducts<Use::kSums1, Use::kInputs, Use::kWeights1>();
  }
  StoreTile<Use::kSums0, kSums>(sums, strides.lines);
  if constexpr (kPanels == 2) StoreTile<Use::kSums1, kSums + kTileBytes>(sums, strides.lines);
}

// Computes the sums of one of the two parts of the step's scales.
template <Chain kChain, int kPanels>
HWY_INLINE void MultiplyPart(const ChunkWorkspace* chunks, const TileStep& step, int part,
                             TileWorkspace& workspace, int buffer) {
  static_assert(kStepScales == 4);
  const std::int64_t s = 2 * part;
  if (s >= step.scales) return;
  const std::uint8_t* const weights = chunks->quants + (step.first + s) * GroupsOf(kChain) * kLine;
  std::int32_t* const sums = workspace.sums[buffer][s][0];
  const Value* const inputs = InputsOf<kChain>(step, s);
  const Value* const next = InputsOf<kChain>(step, s + 1);
  const TileStrides strides;
  if (s + 1 < step.scales) {
    MultiplyScale<kChain, 0, kPanels>(inputs, weights, sums, strides);
    MultiplyScale<kChain, 1, kPanels>(next, weights, sums, strides);
  } else {
    MultiplyScale<kChain, 0, kPanels>(inputs, weights, sums, strides);
  }
}

// The steps of a chunk of weights, one after the other.
template <ProductKind kKind, int kPanels>
class StepsOfChunk {
 public:
  HWY_INLINE StepsOfChunk(const ChunkWorkspace* chunks, std::int64_t blocks,
                          TileWorkspace& workspace)
      : chunks_(chunks), scales_(blocks * PartsOf(kKind.chain)), workspace_(workspace) {}

  // Adds a tile of tokens to y, but for what the next call does.
  HWY_INLINE void Add(const TileInput& x, std::int64_t tokens, float* y) {
    for (std::int64_t first = 0; first < scales_; first += kStepScales) {
      const std::int64_t scales = std::min(kStepScales, scales_ - first);
      Run({x, tokens, first, scales, first == 0, first + scales == scales_, y});
    }
  }
  // Adds what is left.
  HWY_INLINE void Finish() {
    for (int part = 0; part < 2; ++part) Fold(part);
    pending_.tokens = 0;
  }

 private:
  HWY_INLINE void Run(const TileStep& step) {
    for (int part = 0; part < 2; ++part) {
      MultiplyPart<kKind.chain, kPanels>(chunks_, step, part, workspace_, buffer_);
      Fold(part);
    }
    pending_ = step;
    buffer_ = 1 - buffer_;
  }
  HWY_INLINE void Fold(int part) {
    if (pending_.tokens > 0)
      FoldPart<kKind, kPanels>(chunks_, pending_, part, workspace_, 1 - buffer_);
  }

  const ChunkWorkspace* chunks_;  // [kPanels]
  std::int64_t scales_;
  TileWorkspace& workspace_;
  TileStep pending_ = {};  // its sums are in the other buffer
  int buffer_ = 0;
};

inline std::int64_t MatrixTilesPerGroup(std::int64_t inputs) {
  return std::clamp(kGroupValues / inputs, kMinGroupTokens, kMaxGroupTokens) / kMatrixTileTokens;
}

// Writes sums that are tile by tile: [panel][token][16 rows].
template <int kPanels>
void StoreTiles(const Product& product, std::int64_t panel, const TokenTiles& tiles, Group group,
                const float* y) {
  for (std::int64_t tile = group.begin; tile < group.end; ++tile) {
    const std::int64_t size = tiles.Size(tile);
    for (std::int64_t p = 0; p < kPanels; ++p) {
      const std::int64_t row = (panel + p) * kPanelRows;
      for (std::int64_t t = 0; t < size; ++t) {
        StoreRows(y + (p * size + t) * kPanelRows, product.outputs - row,
                  product.y + (tiles.Begin(tile) + t) * product.outputs + row);
      }
    }
    y += size * kPanels * kPanelRows;
  }
}

template <class Format, int kPanels>
void MultiplyGroupWithTiles(const Product& product, std::int64_t panel, const TokenTiles& tiles,
                            Group group, const PanelWorkspace& workspace,
                            TileWorkspace& tile_workspace) {
  const std::int64_t inputs = product.x.inputs;
  const std::int64_t panel_bytes = PanelBytes(product.dtype, inputs);
  const std::int64_t first = tiles.Begin(group.begin);
  const std::int64_t tokens = tiles.Begin(group.end) - first;
  std::memset(workspace.y, 0,
              static_cast<std::size_t>(tokens * kPanels * kPanelRows) * sizeof(float));
  const auto* chunk_at =
      reinterpret_cast<const std::uint8_t*>(product.panels) + panel * panel_bytes;
  const Prefetching prefetching =
      group.end - group.begin == 1 ? Prefetching::kUnpacking : Prefetching::kTiles;
  for (std::int64_t chunk = 0; chunk < Chunks(inputs); ++chunk) {
    const std::int64_t blocks = BlocksOf(inputs, chunk);
    for (int p = 0; p < kPanels; ++p) {
      UnpackSignedChunk<Format>(chunk_at + p * panel_bytes, blocks, prefetching,
                                workspace.chunks[p]);
    }
    StepsOfChunk<Format::kProduct, kPanels> steps(workspace.chunks, blocks, tile_workspace);
    for (std::int64_t tile = group.begin; tile < group.end; ++tile) {
      const std::int64_t begin = tiles.Begin(tile);
      for (std::int64_t p = 0; p < kPanels && prefetching == Prefetching::kTiles; ++p) {
        PrefetchPart(chunk_at + p * panel_bytes, ChunkBytes(product.dtype, blocks),
                     tile - group.begin, group.end - group.begin);
      }
      steps.Add(InputOf<Format::kProduct>(product.x, chunk, begin), tiles.Size(tile),
                workspace.y + (begin - first) * kPanels * kPanelRows);
    }
    steps.Finish();
    chunk_at += ChunkBytes(product.dtype, blocks);
  }
  StoreTiles<kPanels>(product, panel, tiles, group, workspace.y);
}

template <DType kType>
void MultiplyWithTiles(const Product& product, std::int64_t begin, std::int64_t end,
                       const PanelWorkspace& workspace, TileWorkspace& tile_workspace) {
  using F = Format<kType>;
  const TokenTiles tiles(product.x.tokens, kMatrixTileTokens);
  const ConfiguredTiles configured(ShapesFor<F::kProduct.chain>(tiles.Size(0)));
  const std::int64_t step = MatrixTilesPerGroup(product.x.inputs);
  for (std::int64_t tile = 0; tile < tiles.count(); tile += step) {
    const Group group{tile, std::min(tile + step, tiles.count())};
    std::int64_t panel = begin;
    for (; panel + kTilePanels <= end; panel += kTilePanels) {
      MultiplyGroupWithTiles<F, kTilePanels>(product, panel, tiles, group, workspace,
                                             tile_workspace);
    }
    for (; panel < end; ++panel) {
      MultiplyGroupWithTiles<F, 1>(product, panel, tiles, group, workspace, tile_workspace);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvcache::cpu::block
HWY_AFTER_NAMESPACE();

#endif  // AVX3_DL

#endif  // per-target include guard
