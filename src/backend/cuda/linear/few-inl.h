// Products with at most 8 columns, for one type of weights: bound by the memory of the weights.
//
// A block takes a panel and a tile of columns. Its warps take the chunks of 256 inputs in turn. Each has
// stages of its own in shared memory, into which the next chunks are copied in the background. Per 256
// inputs the chain of a chunk is its own; per 32 the scaled sums are terms. Both are left in shared memory,
// and after each section of chunks a thread for each output adds them in order. There are two sections of
// memory, so one barrier is enough: it is passed when the section before has been read.
#pragma once

#include "backend/cuda/linear/block_sums-inl.h"
#include "backend/cuda/linear/few_memory.h"
#include "backend/cuda/linear/task-inl.h"

namespace kvcache::cuda::linear {

template <DType kType>
class FewKernel {
 public:
  KVCACHE_DEVICE FewKernel(const LinearTask& task, std::int64_t panel, int tile, std::byte* shared)
      : panel_(task.weights + panel * block::PanelBytes(kType, task.inputs)),
        spot_(SpotOfLane()),
        inputs_(task.inputs),
        chunks_((task.inputs + 255) / 256),
        columns_(task.columns - tile * kTileColumns < kTileColumns
                     ? task.columns - tile * kTileColumns
                     : kTileColumns),
        stages_(shared + Warp() * (Memory::kStages * Memory::kStageBytes)),
        sections_(reinterpret_cast<float*>(shared + Memory::kSectionsAt)) {
    const std::int64_t first = tile * PairsOf(task.inputs);
    values_ = task.x.values + first * kPairWords;
    scales_ = kPer256 ? task.x.scales + static_cast<std::int64_t>(tile) * chunks_ * kTileColumns
                      : task.x.scales + first * 16 * kParts;
    sums_ = kParts == 2 ? task.x.halves + first * 32 : task.x.sums + first * 16;
  }

  // Returns the output of this thread.
  KVCACHE_DEVICE float Run() const {
    float y = 0.0f;
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < Memory::kStages; ++i) Copy(Warp() + i * kFewWarps, i);
    float* section = sections_;
    float* other = sections_ + Memory::SectionFloats(columns_);
    int stage = 0;
    for (int first = 0; first < chunks_; first += Memory::kChunks) {
      KVCACHE_UNROLL_BY(1)
      for (int i = Warp(); i < Memory::kChunks; i += kFewWarps) {
        const int chunk = first + i;
        if (chunk >= chunks_) break;
        AsyncWait<Memory::kStages - 2>();
        // The chunk is there for all lanes, and all have read the one before, whose stage is next.
        WarpBarrier();
        const int last = stage == 0 ? Memory::kStages - 1 : stage - 1;
        Copy(chunk + (Memory::kStages - 1) * kFewWarps, last);
        Multiply(chunk, stages_ + stage * Memory::kStageBytes,
                 section + i * Memory::kTerms * columns_ * kRows,
                 section + (Memory::kChunks * columns_ + i) * Memory::kTerms * kRows);
        stage = stage + 1 == Memory::kStages ? 0 : stage + 1;
      }
      BlockBarrier();
      if (has_output()) y = AddSection(section, first, y);
      float* const read = section;
      section = other;
      other = read;
    }
    return y;
  }

  KVCACHE_DEVICE bool has_output() const { return column() < columns_; }
  static KVCACHE_DEVICE int column() { return Thread() / kRows; }
  static KVCACHE_DEVICE int row() { return Thread() % kRows; }

 private:
  using Memory = FewMemory<kType>;
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  static constexpr bool kPer256 = IsPer256(kChain);
  static constexpr int kBlocks = static_cast<int>(block::kChunkBlocks);
  static constexpr int kRows = Memory::kRows;
  static constexpr int kBodyBytes = static_cast<int>(block::LayoutOf(kType).body_bytes);

  KVCACHE_DEVICE int BlocksOf(int chunk) const {
    const int rest = inputs_ / 32 - chunk * kBlocks;
    return kPer256 || rest > kBlocks ? kBlocks : rest;
  }

  // Starts to copy a chunk to a stage, if there is one, and closes the group of copies.
  KVCACHE_DEVICE void Copy(int chunk, int stage) const {
    if (chunk < chunks_) {
      std::byte* const to = stages_ + stage * Memory::kStageBytes;
      const int blocks = BlocksOf(chunk);
      const auto bytes = static_cast<int>(block::ChunkBytes(kType, blocks));
      CopyBytes<Memory::kChunkBytes>(
          panel_ + static_cast<std::int64_t>(chunk) * Memory::kChunkBytes, bytes, to);
      if (spot_.g < columns_) {
        const auto* const values =
            reinterpret_cast<const std::byte*>(values_ + chunk * (4 * kPairWords)) + Lane() * 16;
        KVCACHE_UNROLL
        for (int pair = 0; pair < Memory::kPairs; ++pair) {
          if (2 * pair >= blocks) break;
          AsyncCopy16(to + Memory::kChunkBytes + pair * 512 + Lane() * 16, values + pair * 512);
        }
      }
      if constexpr (Memory::kHasSums) {
        CopyBytes<Memory::kSumBytes>(
            reinterpret_cast<const std::byte*>(sums_ + chunk * (Memory::kSumBytes / 4)),
            Memory::kSumBytes, to + Memory::kChunkBytes + Memory::kValueBytes);
      }
    }
    AsyncCommit();
  }

  // Copies `bytes` bytes, at most kMost, 16 by 16.
  template <int kMost>
  static KVCACHE_DEVICE void CopyBytes(const std::byte* from, int bytes, std::byte* to) {
    from += Lane() * 16;
    to += Lane() * 16;
    KVCACHE_UNROLL
    for (int i = 0; i < kMost; i += 512) {
      if (i + Lane() * 16 < bytes) AsyncCopy16(to + i, from + i);
    }
  }

  // Leaves a value for each of the lane's rows and columns: values [row][column].
  KVCACHE_DEVICE void Leave(float* term, const float (&values)[2][2]) const {
    KVCACHE_UNROLL
    for (int column = 0; column < 2; ++column) {
      const int c = 2 * spot_.t + column;
      if (c >= columns_) continue;
      term[c * kRows + 2 * spot_.g] = values[0][column];
      term[c * kRows + 2 * spot_.g + 1] = values[1][column];
    }
  }

  // Multiplies the 32 inputs `b` of a chunk. Per 256 inputs, adds to `a`; else leaves the terms.
  KVCACHE_DEVICE void MultiplyBlock(const std::byte* lines, const Factors<kType>& w,
                                    const std::byte* x, int b, float* terms, float* minima,
                                    float (&a)[2][2]) const {
    std::uint32_t fragment[4];
    MakeFragment<kType>(LoadLines<kType, FromShared>(lines, spot_), spot_, fragment);
    Words2 column = {};
    if (spot_.g < columns_) {
      column = *reinterpret_cast<const Words2*>(x + b / 2 * 512 + Lane() * 16 + b % 2 * 8);
    }
    const Dots<kParts> dots = DotsOf<kParts>(starts_, fragment, column.row);
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      if constexpr (kPer256) {
        float sums[2] = {};
        if constexpr (Memory::kHasSums) {
          const auto* const two =
              reinterpret_cast<const float*>(x + Memory::kValueBytes + b / 2 * (64 * kParts) +
                                             spot_.t * (16 * kParts) + (b % 2 * kParts + part) * 8);
          sums[0] = two[0];
          sums[1] = two[1];
        }
        KVCACHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& sum = a[i / 2][i % 2];
          sum = AddTo<kType>(sum, dots, w, part, i / 2, i % 2, sums[i % 2]);
        }
      } else {
        float values[2][2];
        KVCACHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          values[i / 2][i % 2] = ScaledOf<kType>(dots, w, part, i / 2, i % 2);
        }
        Leave(terms + (b * kParts + part) * columns_ * kRows, values);
      }
    }
    if constexpr (Memory::kMinima == 1) {
      if (spot_.t == 0) {
        minima[b * kRows + 2 * spot_.g] = w.minimum[0][0];
        minima[b * kRows + 2 * spot_.g + 1] = w.minimum[0][1];
      }
    }
  }

  // Multiplies a chunk, which is in `stage`.
  KVCACHE_DEVICE void Multiply(int chunk, const std::byte* stage, float* terms,
                               float* minima) const {
    const OuterHead outer = LoadOuter<kType, FromShared>(stage, spot_);
    const std::byte* const x = stage + Memory::kChunkBytes;
    float a[2][2] = {};
    const int blocks = BlocksOf(chunk);
    if (kPer256 || blocks == kBlocks) {
      const std::byte* const body = stage + block::HeadBytes(kType, kBlocks);
      KVCACHE_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        const Factors<kType> w(
            MakeScales<kType>(outer, LoadInner<kType, FromShared>(stage, b, spot_), b));
        MultiplyBlock(body + b * kBodyBytes, w, x, b, terms, minima, a);
      }
      if constexpr (kPer256) Leave(terms, a);
    } else {
      const std::byte* const body = stage + block::HeadBytes(kType, blocks);
      KVCACHE_UNROLL_BY(1)
      for (int b = 0; b < blocks; ++b) {
        const Factors<kType> w(
            MakeScales<kType>(outer, LoadInner<kType, FromShared>(stage, b, spot_), b));
        MultiplyBlock(body + b * kBodyBytes, w, x, b, terms, minima, a);
      }
    }
  }

  // Adds a section's terms to y.
  KVCACHE_DEVICE float AddSection(const float* section, int first, float y) const {
    const int end = first + Memory::kChunks < chunks_ ? first + Memory::kChunks : chunks_;
    const float* terms = section + column() * kRows + row();
    if constexpr (kPer256) {
      KVCACHE_UNROLL_BY(4)
      for (int chunk = first; chunk < end; ++chunk) {
        y = Fma(*terms, LoadOnly(scales_ + chunk * kTileColumns + column()), y);
        terms += columns_ * kRows;
      }
    } else {
      const int all = inputs_ / 32;
      const int blocks = (end * kBlocks < all ? end * kBlocks : all) - first * kBlocks;
      const float* scales =
          scales_ + first * (64 * kParts) + column() / 2 * (4 * kParts) + column() % 2;
      const float* sums = sums_ + first * 64 + column() / 2 * 4 + column() % 2;
      const float* minima = section + Memory::kChunks * Memory::kTerms * columns_ * kRows + row();
      int b = 0;
      KVCACHE_UNROLL_BY(1)
      for (; b + kBlocks <= blocks; b += kBlocks) {
        KVCACHE_UNROLL
        for (int i = 0; i < kBlocks; ++i) y = AddBlock(terms, minima, scales, sums, i, y);
        terms += kBlocks * kParts * columns_ * kRows;
        minima += kBlocks * kRows;
        scales += 64 * kParts;
        sums += 64;
      }
      KVCACHE_UNROLL_BY(1)
      for (int i = 0; b + i < blocks; ++i) y = AddBlock(terms, minima, scales, sums, i, y);
    }
    return y;
  }

  // Adds the terms of the 32 inputs `i` of a chunk.
  KVCACHE_DEVICE float AddBlock(const float* terms, const float* minima, const float* scales,
                                const float* sums, int i, float y) const {
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const float scale = LoadOnly(scales + i / 2 * (16 * kParts) + (i % 2 * kParts + part) * 2);
      y = Fma(terms[(i * kParts + part) * columns_ * kRows], scale, y);
    }
    if constexpr (Memory::kMinima == 1) {
      y = Fma(minima[i * kRows], LoadOnly(sums + i / 2 * 16 + i % 2 * 2), y);
    }
    return y;
  }

  const std::byte* panel_;
  const std::uint32_t* values_;  // the tile's
  const float* scales_;          // the tile's
  const float* sums_;            // the tile's: halves, if minima are per 16
  Spot spot_;
  Starts starts_;
  int inputs_;
  int chunks_;
  int columns_;  // of the tile
  std::byte* stages_;
  float* sections_;
};

template <DType kType>
KVCACHE_DEVICE void MultiplyFew(const LinearArgs& args) {
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int tiles = static_cast<int>(TilesOf(task.columns));
  const int index = BlockX() - task.first_block;
  const int tile = index % tiles;
  const std::int64_t panel = index / tiles;
  const FewKernel<kType> kernel(task, panel, tile, SharedMemory<SharedBytes16>().at);
  const float y = kernel.Run();
  const std::int64_t row = panel * block::kPanelRows + kernel.row();
  if (!kernel.has_output() || row >= task.outputs) return;
  const std::int64_t column = tile * kTileColumns + kernel.column();
  task.y[column * task.outputs + row] = y;
}

}  // namespace kvcache::cuda::linear
