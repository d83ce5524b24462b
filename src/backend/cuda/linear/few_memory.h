// The shared memory of the products with few columns (few-inl.h), for the host and for kernels.
#pragma once

#include "backend/cuda/linear/block_types.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// The shared memory of a block: stages, then two sections.
template <DType kType>
struct FewMemory {
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);

  // A stage: the chunk, the values of its inputs, their sums.
  static constexpr int kChunkBytes =
      static_cast<int>(block::ChunkBytes(kType, block::kChunkBlocks));
  static constexpr int kPairs = 4;
  static constexpr int kValueBytes = kPairs * kPairWords * 4;
  static constexpr bool kHasSums = IsPer256(kChain) && HasMinima(kChain);
  static constexpr int kSumBytes = kHasSums ? kPairs * 64 * kParts : 0;
  static constexpr int kStageBytes = kChunkBytes + kValueBytes + kSumBytes;
  // More of them would not fit beside the sections of 8 columns.
  static constexpr int kStages = kType == DType::kQ8_0 || kType == DType::kNVFP4 ? 2 : 3;

  static constexpr int kRows = 16;
  static constexpr int kTerms = IsPer256(kChain) ? 1 : 8 * kParts;  // of a chunk
  static constexpr int kChunks = kFewWarps * (IsPer256(kChain) ? 4 : 1);
  // Minima of the rows follow the terms.
  static constexpr int kMinima = kChain == Chain::kPer32WithMinimum ? 1 : 0;
  static constexpr int SectionFloats(int columns) {
    return kChunks * kTerms * kRows * (columns + kMinima);
  }

  static constexpr int kSectionsAt = kFewWarps * kStages * kStageBytes;
  static constexpr int Bytes(int columns) { return kSectionsAt + 2 * 4 * SectionFloats(columns); }
};

}  // namespace kvcache::cuda::linear
