// The tiles of the products with many columns (many-inl.h), and their shared memory, for the host and for
// kernels.
#pragma once

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

template <DType kType>
struct ManyMemory {
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);

  // A warp has 64 sums a lane: per 32 inputs those of 2 panels and 64 columns, per 256 those of a panel and
  // 64 columns for the chunk, and for all inputs.
  static constexpr int kPanels = IsPer256(kChain) ? 1 : 2;
  static constexpr int kTiles = 8;
  static constexpr int kColumnWarps = IsPer256(kChain) ? 1 : 2;
  static constexpr int kRowWarps = kManyWarps / kColumnWarps;
  static constexpr int kPanelsOfBlock = kPanels * kRowWarps;
  static constexpr int kTilesOfBlock = kTiles * kColumnWarps;

  // A stage: what the block's tiles have of a pair of 32 inputs.
  static constexpr int kValueBytes = kPairWords * 4;  // of a tile
  static constexpr int kScaleBytes = IsPer256(kChain) ? 0 : 64 * kParts;
  static constexpr int kSumBytes = HasMinima(kChain) ? 64 * kParts : 0;
  static constexpr int kScalesAt = kTilesOfBlock * kValueBytes;
  static constexpr int kSumsAt = kScalesAt + kTilesOfBlock * kScaleBytes;
  static constexpr int kStageBytes = kSumsAt + kTilesOfBlock * kSumBytes;
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * kStageBytes;
};

}  // namespace kvcache::cuda::linear
