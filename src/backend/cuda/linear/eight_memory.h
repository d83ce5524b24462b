// The shared memory of the products with two to eight columns (eight-inl.h), for the host and for kernels.
#pragma once

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// The shared memory of a block: stages of each warp, then sections, then factors.
template <DType kType>
struct EightMemory {
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  static constexpr int kRows = 16;
  static constexpr int kPanels = 2;
  static constexpr int kWarps = kEightThreads / 32;

  // A stage: a chunk of each panel, then their inputs: values, scales, sums.
  static constexpr int kChunkBytes =
      static_cast<int>(block::ChunkBytes(kType, block::kChunkBlocks));
  static constexpr int kPairs = 4;
  static constexpr int kValueBytes = kPairs * kPairWords * 4;
  static constexpr int kPairFactorBytes = 64 * kParts;
  static constexpr int kScaleBytes = IsPer256(kChain) ? 32 : kPairs * kPairFactorBytes;
  static constexpr int kSumBytes = HasMinima(kChain) ? kPairs * kPairFactorBytes : 0;
  static constexpr int kInputsAt = kPanels * kChunkBytes;
  static constexpr int kScalesAt = kInputsAt + kValueBytes;
  static constexpr int kSumsAt = kScalesAt + kScaleBytes;
  static constexpr int kStageBytes = kSumsAt + kSumBytes;
  static constexpr int kStages = 2;

  // A round: a chunk for each warp. A section: what some rounds leave for each chunk: of each panel terms
  // [term][row][column] and minima [32 inputs][row], then scales, and sums per 32 inputs.
  static constexpr int kRounds = IsPer256(kChain) ? 4 : 1;
  static constexpr int kSectionChunks = kRounds * kWarps;
  static constexpr int kTermFloats = kRows * kTileColumns;
  static constexpr int kTerms = IsPer256(kChain) ? 1 : 8 * kParts;
  static constexpr int kMinima = kChain == Chain::kPer32WithMinimum ? 8 : 0;
  static constexpr int kMinimaAt = kTerms * kTermFloats;  // floats
  static constexpr int kPanelFloats = kMinimaAt + kMinima * kRows;
  static constexpr int kFactorsAt = kPanels * kPanelFloats;
  static constexpr int kFactorBytes = kScaleBytes + (kMinima > 0 ? kSumBytes : 0);
  static constexpr int kLeftFloats = kFactorsAt + kFactorBytes / 4;  // of a chunk
  static constexpr int kSectionFloats = kSectionChunks * kLeftFloats;
  // Where terms need much memory, one section and a second barrier let more blocks run.
  static constexpr int kSections = IsPer256(kChain) ? 2 : 1;
  static constexpr int kSectionsAt = kWarps * kStages * kStageBytes;

  // Per 256 inputs, the scales of the warp's rows, and their minima: [warp][panel][32 inputs][row].
  static constexpr int kRowFloats = IsPer256(kChain) ? kParts * (HasMinima(kChain) ? 2 : 1) : 0;
  static constexpr int kWarpFloats = kPanels * 8 * kRows * kRowFloats;
  static constexpr int kRowScalesAt = kSectionsAt + kSections * 4 * kSectionFloats;

  static constexpr int kBytes = kRowScalesAt + kWarps * kWarpFloats * 4;
};

}  // namespace kvcache::cuda::linear
