// The shared memory of the products with one column (one-inl.h), for the host and for kernels.
#pragma once

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// The shared memory of a block: stages of each warp, then two sections.
template <DType kType>
struct OneMemory {
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  static constexpr int kRows = 16;
  static constexpr int kWarps = kOneThreads / 32;
  // Per 256 inputs, sums of inputs correct products of codes that stand for themselves minus a number.
  static constexpr bool kCorrects = IsPer256(kChain) && ZeroOf(kType) > 0;

  // A stage: two chunks, then their inputs. Half a warp reads 64 bytes of one chunk and the other half those of the
  // other at the same time, so the second chunk begins in the other half of the banks.
  static constexpr int kChunkBytes =
      static_cast<int>(block::ChunkBytes(kType, block::kChunkBlocks));
  static constexpr int kChunkPitch = kChunkBytes + (kChunkBytes % 128 == 0 ? 64 : 0);
  // Of the inputs of a chunk, in units of 16 bytes: values [pair][t], scales [pair] of the column and its neighbour (per
  // 256 inputs those of four columns, once), sums as scales.
  static constexpr int kPairs = 4;
  static constexpr int kPairValues = 4;
  static constexpr int kPairFactors = kParts;
  static constexpr int kValueUnits = kPairs * kPairValues;
  static constexpr int kScaleUnits = IsPer256(kChain) ? 1 : kPairs * kPairFactors;
  static constexpr int kSumUnits = HasMinima(kChain) || kCorrects ? kPairs * kPairFactors : 0;
  static constexpr int kUnits = kValueUnits + kScaleUnits + kSumUnits;
  static constexpr int kInputsAt = 2 * kChunkPitch;
  static constexpr int kStageBytes = kInputsAt + 2 * kUnits * 16;
  static constexpr int kStages = 2;

  // A round: the two chunks of each warp. A section: what some rounds leave for each chunk, which is terms
  // [term][row], minima [32 inputs][row], and the units of scales, and of sums per 32 inputs.
  static constexpr int kRoundChunks = 2 * kWarps;
  static constexpr int kRounds = IsPer256(kChain) ? 4 : 1;
  static constexpr int kSectionChunks = kRounds * kRoundChunks;
  static constexpr int kTerms = IsPer256(kChain) ? 1 : 8 * kParts;
  static constexpr int kMinima = kChain == Chain::kPer32WithMinimum ? 8 : 0;
  static constexpr int kFactorUnits = kScaleUnits + (kMinima > 0 ? kSumUnits : 0);
  static constexpr int kMinimaAt = kTerms * kRows;  // floats
  static constexpr int kFactorsAt = kMinimaAt + kMinima * kRows;
  static constexpr int kLeftFloats = kFactorsAt + kFactorUnits * 4;  // of a chunk
  static constexpr int kSectionFloats = kSectionChunks * kLeftFloats;
  static constexpr int kSectionsAt = kWarps * kStages * kStageBytes;
  static constexpr int kBytes = kSectionsAt + 2 * 4 * kSectionFloats;
};

}  // namespace kvcache::cuda::linear
