// The tiles of the products with many columns (many-inl.h), and their shared memory, for the host and for
// kernels.
#pragma once

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// What a warp takes, and how many warps lie beside each other.
struct ManyShape {
  int panels;
  int tiles;
  int column_warps;
};

// Wide: 64 rows and 128 columns or, per 256 inputs, 128 rows and 64 columns. More sums a lane would leave registers for
// one block of a processor only, and its 8 warps wait for each other.
constexpr ManyShape WideShapeOf(DType type) {
  return IsPer256(ChainOf(type)) ? ManyShape{1, 8, 1} : ManyShape{1, 8, 2};
}
// Middle: 64 rows × 64 columns, and narrow: 64 rows × 32 columns, for fewer columns, and for products that have too few
// wider tiles for all processors.
inline constexpr ManyShape kMiddleShape = {1, 4, 2};
inline constexpr ManyShape kNarrowShape = {1, 2, 2};
// Blocks that run on a processor at the same time, at least.
inline constexpr int kManyBlocks = 2;

template <DType kType, ManyShape kShape>
struct ManyMemory {
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  static constexpr int kRowWarps = kManyWarps / kShape.column_warps;
  static constexpr int kPanelsOfBlock = kShape.panels * kRowWarps;
  static constexpr int kTilesOfBlock = kShape.tiles * kShape.column_warps;

  // A stage: what the block's tiles have of a pair of 32 inputs. Per 256 inputs, scales come with the last
  // pair.
  static constexpr int kValueBytes = kPairWords * 4;  // of a tile
  static constexpr int kScaleBytes = IsPer256(kChain) ? 32 : 64 * kParts;
  static constexpr int kSumBytes = HasMinima(kChain) ? 64 * kParts : 0;
  static constexpr int kScalesAt = kTilesOfBlock * kValueBytes;
  static constexpr int kSumsAt = kScalesAt + kTilesOfBlock * kScaleBytes;
  // And of its panels: what all pairs have, and per 32 inputs their heads.
  static constexpr int kPairBodyBytes = 2 * static_cast<int>(block::LayoutOf(kType).body_bytes);
  static constexpr int kPairHeadBytes =
      IsPer256(kChain) ? 0 : 2 * static_cast<int>(block::LayoutOf(kType).head_bytes);
  static constexpr int kBodiesAt = kSumsAt + kTilesOfBlock * kSumBytes;
  static constexpr int kPairHeadsAt = kBodiesAt + kPanelsOfBlock * kPairBodyBytes;
  static constexpr int kStageBytes = kPairHeadsAt + kPanelsOfBlock * kPairHeadBytes;
  // One for each pair of a chunk.
  static constexpr int kStages = 4;

  // Per 256 inputs, the heads of the chunk, which come with the first pair.
  static constexpr int kHeadsAt = kStages * kStageBytes;
  static constexpr int kHeadBytes =
      IsPer256(kChain) ? static_cast<int>(block::HeadBytes(kType, 8)) : 0;  // of a panel

  // Per 256 inputs, the lanes of a row compute its scales of two pairs each, and share them:
  // [warp][panel][32 inputs][g] scales of both rows and all parts, then minima.
  static constexpr bool kSharesScales = IsPer256(kChain) && block::LayoutOf(kType).head_bytes > 4;
  static constexpr int kSharedFloats = 2 * kParts * (HasMinima(kChain) ? 2 : 1);
  static constexpr int kWarpFloats = kShape.panels * 8 * 8 * kSharedFloats;
  static constexpr int kFactorsAt = kHeadsAt + kPanelsOfBlock * kHeadBytes;
  static constexpr int kFactorBytes = kSharesScales ? kManyWarps * kWarpFloats * 4 : 0;

  // Sums of all inputs, if a lane has no registers for them beside those of a chunk: [panel][tile][thread] four.
  static constexpr bool kKeepsSums = IsPer256(kChain) && kShape.tiles > 4;
  static constexpr int kKeptAt = kFactorsAt + kFactorBytes;
  static constexpr int kKeptBytes =
      kKeepsSums ? kShape.panels * kShape.tiles * kManyThreads * 16 : 0;

  static constexpr int kBytes = kKeptAt + kKeptBytes;
};

}  // namespace kvcache::cuda::linear
