// The tiles of the products with many columns (many-inl.h), and their shared memory, for the host and for
// kernels.
#pragma once

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// What a warp takes, how many warps lie beside each other, and how many pairs of 32 inputs the panels are
// read ahead.
struct ManyShape {
  int panels;
  int tiles;
  int column_warps;
  int ahead;
};

// Wide: 128 rows and 128 columns, or half of one of them where there are more factors or, per 256 inputs,
// sums of the chunk. More sums a lane would not fit in registers.
constexpr ManyShape WideShapeOf(DType type) {
  const Chain chain = ChainOf(type);
  if (IsPer256(chain)) return {1, 8, 1, 1};
  return chain == Chain::kPer32 ? ManyShape{2, 8, 2, 1} : ManyShape{1, 8, 2, 1};
}
// Narrow: 64 rows × 32 columns, for products that have too few wide tiles for all processors, which wait for
// memory then.
constexpr ManyShape NarrowShapeOf(DType /*type*/) {
  return {1, 2, 2, 2};
}

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
  static constexpr int kStageBytes = kSumsAt + kTilesOfBlock * kSumBytes;
  // One for each pair of a chunk.
  static constexpr int kStages = 4;

  // Per 256 inputs, the lanes of a row compute its scales of two pairs each, and share them:
  // [warp][panel][32 inputs][g] scales of both rows and all parts, then minima.
  static constexpr bool kSharesScales = IsPer256(kChain) && block::LayoutOf(kType).head_bytes > 4;
  static constexpr int kSharedFloats = 2 * kParts * (HasMinima(kChain) ? 2 : 1);
  static constexpr int kWarpFloats = kShape.panels * 8 * 8 * kSharedFloats;
  static constexpr int kFactorsAt = kStages * kStageBytes;
  static constexpr int kFactorBytes = kSharesScales ? kManyWarps * kWarpFloats * 4 : 0;

  static constexpr int kBytes = kFactorsAt + kFactorBytes;
};

}  // namespace kvcache::cuda::linear
