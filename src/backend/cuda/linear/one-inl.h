// Products with one column, for one type of weights: bound by the memory of the weights.
//
// A block takes a panel. Its warps take pairs of chunks of 256 inputs in turn: a lane has one row of one of the two
// chunks, so nothing is computed twice, and no lane waits for another. All of a warp's stages are copied in the
// background at any time; the first weights, which no kernel writes, before the inputs are there. Per 256 inputs the
// chain of a chunk is its own; per 32 the scaled sums are terms. Both are left in shared memory, and after each
// section of chunks a thread for each output adds them in order. There are two sections of memory, so one barrier is
// enough: it is passed when the section before has been read.
#pragma once

#include "backend/cuda/linear/block_sums-inl.h"
#include "backend/cuda/linear/one_memory.h"
#include "backend/cuda/linear/task-inl.h"

namespace kvcache::cuda::linear {

template <DType kType>
class OneKernel {
 public:
  KVCACHE_DEVICE OneKernel(const LinearTask& task, std::int64_t panel, int column,
                           std::byte* shared)
      : panel_(task.weights + panel * block::PanelBytes(kType, task.inputs)),
        inputs_(task.inputs),
        chunks_((task.inputs + 255) / 256),
        pairs_(static_cast<int>(PairsOf(task.inputs))),
        parity_(column % 2),
        place_in_four_(column % 4),
        stages_(shared + Warp() * (Memory::kStages * Memory::kStageBytes)),
        sections_(reinterpret_cast<float*>(shared + Memory::kSectionsAt)),
        unit_(UnitOf(task, column)) {}

  // Starts to copy the weights of the first stages.
  KVCACHE_DEVICE void Begin() const {
    KVCACHE_UNROLL
    for (int i = 0; i < Memory::kStages; ++i) CopyWeights(Warp() + i * Memory::kWarps, i);
  }

  // Returns the output of this thread.
  KVCACHE_DEVICE float Run() const {
    KVCACHE_UNROLL
    for (int i = 0; i < Memory::kStages; ++i) {
      CopyInputs(Warp() + i * Memory::kWarps, i);
      AsyncCommit();
    }
    float y = 0.0f;
    float* section = sections_;
    float* other = sections_ + Memory::kSectionFloats;
    int stage = 0;
    for (int first = 0; first < chunks_; first += Memory::kSectionChunks) {
      KVCACHE_UNROLL_BY(1)
      for (int round = 0; round < Memory::kRounds; ++round) {
        const int unit = first / 2 + round * Memory::kWarps + Warp();
        if (2 * unit >= chunks_) break;
        AsyncWait<Memory::kStages - 1>();
        WarpBarrier();  // the chunks are there for all lanes
        const int at = 2 * (round * Memory::kWarps + Warp()) + half();
        Multiply(2 * unit + half(), stages_ + stage * Memory::kStageBytes,
                 section + at * Memory::kLeftFloats);
        WarpBarrier();  // all have read them
        const int next = unit + Memory::kStages * Memory::kWarps;
        CopyWeights(next, stage);
        CopyInputs(next, stage);
        AsyncCommit();
        stage = stage + 1 == Memory::kStages ? 0 : stage + 1;
      }
      BlockBarrier();
      if (Thread() < kRows) y = AddSection(section, first, y);
      float* const read = section;
      section = other;
      other = read;
    }
    return y;
  }

  static KVCACHE_DEVICE int row() { return Thread() % kRows; }

 private:
  using Memory = OneMemory<kType>;
  static constexpr Chain kChain = Memory::kChain;
  static constexpr int kParts = Memory::kParts;
  static constexpr bool kPer256 = IsPer256(kChain);
  static constexpr int kBlocks = static_cast<int>(block::kChunkBlocks);
  static constexpr int kRows = Memory::kRows;
  static constexpr int kBodyBytes = static_cast<int>(block::LayoutOf(kType).body_bytes);
  static_assert(Memory::kUnits <= 32);
  // What two columns have of a pair of 32 inputs, in floats: [32 inputs and part][column].
  static constexpr int kTwoColumns = 4 * kParts;

  // 16 bytes of a chunk's inputs, which a lane copies.
  struct Unit {
    const std::byte* from;  // in the first chunk
    std::int32_t step;      // bytes to the next chunk
    std::int32_t pair;      // of the chunk
  };

  static KVCACHE_DEVICE Unit UnitOf(const LinearTask& task, int task_column) {
    int index = Lane();
    const int tile = task_column / kTileColumns;
    const int column = task_column % kTileColumns;
    const std::int64_t pairs = tile * PairsOf(task.inputs);
    if (index < Memory::kValueUnits) {
      const int pair = index / Memory::kPairValues;
      const int at = column * 4 + index % Memory::kPairValues;
      return {reinterpret_cast<const std::byte*>(task.x.values + pairs * kPairWords) +
                  pair * (kPairWords * 4) + at * 16,
              Memory::kPairs * kPairWords * 4, pair};
    }
    index -= Memory::kValueUnits;
    if (kPer256 && index == 0) {
      const int chunks = task.inputs / 256;
      return {reinterpret_cast<const std::byte*>(task.x.scales + tile * chunks * kTileColumns +
                                                 column / 4 * 4),
              kTileColumns * 4, 0};
    }
    const bool is_scale = index < Memory::kScaleUnits;
    if (!is_scale) index -= Memory::kScaleUnits;
    const float* const array = is_scale ? task.x.scales : kParts == 2 ? task.x.halves : task.x.sums;
    const int pair = index / Memory::kPairFactors;
    const int at = column / 2 * kParts + index % Memory::kPairFactors;
    return {
        reinterpret_cast<const std::byte*>(array + (pairs + pair) * (4 * kTwoColumns)) + at * 16,
        Memory::kPairs * 4 * kTwoColumns * 4, pair};
  }

  static KVCACHE_DEVICE int half() { return Lane() / kRows; }

  KVCACHE_DEVICE int BlocksOf(int chunk) const {
    const int rest = inputs_ / 32 - chunk * kBlocks;
    return kPer256 || rest > kBlocks ? kBlocks : rest;
  }

  // Start to copy the two chunks of a unit, and their inputs, if they are there.
  KVCACHE_DEVICE void CopyWeights(int unit, int stage) const {
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int chunk = 2 * unit + i;
      if (chunk >= chunks_) break;
      const auto bytes = static_cast<int>(block::ChunkBytes(kType, BlocksOf(chunk)));
      const std::byte* const from =
          panel_ + static_cast<std::int64_t>(chunk) * Memory::kChunkBytes + Lane() * 16;
      std::byte* const to =
          stages_ + stage * Memory::kStageBytes + i * Memory::kChunkPitch + Lane() * 16;
      KVCACHE_UNROLL
      for (int at = 0; at < Memory::kChunkBytes; at += 512) {
        if (at + Lane() * 16 < bytes) AsyncCopy16(to + at, from + at);
      }
    }
  }
  KVCACHE_DEVICE void CopyInputs(int unit, int stage) const {
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int chunk = 2 * unit + i;
      if (chunk >= chunks_) break;
      std::byte* const to = stages_ + stage * Memory::kStageBytes + Memory::kInputsAt +
                            i * (Memory::kUnits * 16) + Lane() * 16;
      const int pairs = pairs_ - chunk * Memory::kPairs;
      if (Lane() < Memory::kUnits && unit_.pair < pairs) {
        AsyncCopy16(to, unit_.from + static_cast<std::int64_t>(chunk) * unit_.step);
      }
    }
  }

  // Multiplies a chunk, if it is there, and leaves what the section gets of it.
  KVCACHE_DEVICE void Multiply(int chunk, const std::byte* stage, float* left) const {
    if (chunk >= chunks_) return;
    const std::byte* const weights = stage + half() * Memory::kChunkPitch;
    const std::byte* const x = stage + Memory::kInputsAt + half() * (Memory::kUnits * 16);
    const RowSpot spot = {row(), 0};
    const OuterHead outer = LoadOuter<kType, OneRowOfShared>(weights, spot);
    float a = 0.0f;
    const int blocks = BlocksOf(chunk);
    const std::byte* const body = weights + (blocks == kBlocks ? block::HeadBytes(kType, kBlocks)
                                                               : block::HeadBytes(kType, blocks));
    if (blocks == kBlocks) {
      KVCACHE_UNROLL
      for (int pair = 0; pair < Memory::kPairs; ++pair) {
        MultiplyPair<2>(weights, outer, body, x, pair, left, a);
      }
    } else {
      KVCACHE_UNROLL_BY(1)
      for (int pair = 0; 2 * pair < blocks; ++pair) {
        if (2 * pair + 1 < blocks) {
          MultiplyPair<2>(weights, outer, body, x, pair, left, a);
        } else {
          MultiplyPair<1>(weights, outer, body, x, pair, left, a);
        }
      }
    }
    if constexpr (kPer256) left[row()] = a;
    const auto* const factors = reinterpret_cast<const Words4*>(x) + Memory::kValueUnits;
    auto* const kept = reinterpret_cast<Words4*>(left + Memory::kFactorsAt);
    KVCACHE_UNROLL
    for (int i = 0; i < Memory::kFactorUnits; i += kRows) {
      // Those behind the last pair hold nothing, and are not read.
      const int unit = i + row();
      const int pair = kPer256 ? 0 : unit % Memory::kScaleUnits / Memory::kPairFactors;
      if (unit < Memory::kFactorUnits && 2 * pair < blocks) kept[unit] = factors[unit];
    }
  }

  // Multiplies the first kCount × 32 inputs of a pair. Per 256 inputs, adds to `a`; else leaves the terms.
  template <int kCount>
  KVCACHE_DEVICE void MultiplyPair(const std::byte* weights, const OuterHead& outer,
                                   const std::byte* body, const std::byte* x, int pair, float* left,
                                   float& a) const {
    std::int32_t dots[kCount][kParts];
    KVCACHE_UNROLL
    for (auto& of_block : dots) {
      KVCACHE_UNROLL
      for (std::int32_t& dot : of_block) dot = kSumStart;
    }
    const auto* const sums =
        reinterpret_cast<const float*>(x + (Memory::kValueUnits + Memory::kScaleUnits) * 16);
    if constexpr (Memory::kCorrects) {
      // Bits of 12582912 - zero · sum, which is exact, are the start minus that product.
      KVCACHE_UNROLL
      for (int i = 0; i < kCount * kParts; ++i) {
        constexpr float kZero = ZeroOf(kType);
        dots[i / kParts][i % kParts] =
            static_cast<std::int32_t>(BitsOf(Fma(-kZero, sums[FactorAt(pair, i)], kSumStartValue)));
      }
    }
    const auto* const values = reinterpret_cast<const Words4*>(x) + pair * Memory::kPairValues;
    KVCACHE_UNROLL
    for (int t = 0; t < 4; ++t) {
      const RowSpot spot = {row(), t};
      std::uint32_t fragments[kCount][4];
      KVCACHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const std::byte* const lines = body + (2 * pair + i) * kBodyBytes;
        const Lines<kType> words = LoadLines<kType, OneRowOfShared>(lines, spot);
        if constexpr (Memory::kCorrects) {
          fragments[i][0] = CodesOf<kType, 0, 0>(words, spot);
          fragments[i][2] = CodesOf<kType, 1, 0>(words, spot);
        } else {
          MakeFragment<kType>(words, spot, fragments[i]);
        }
      }
      const Words4 four = values[t];
      KVCACHE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        std::int32_t& first = dots[i][0];
        first = Dp4a(fragments[i][0], four.at[2 * i], first);
        std::int32_t& last = dots[i][kParts - 1];
        last = Dp4a(fragments[i][2], four.at[2 * i + 1], last);
      }
    }
    KVCACHE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int b = 2 * pair + i;
      RowScales<kType> scales{};
      MakeRowScales<kType, 0>(
          outer, LoadInner<kType, OneRowOfShared>(weights, b, RowSpot{row(), 0}), b, scales);
      const Factors<kType> w(scales);
      KVCACHE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        Dots<kParts> dot;
        dot.at[part][0][0] = FloatOf(static_cast<std::uint32_t>(dots[i][part]));
        if constexpr (kPer256) {
          float sum = 0.0f;
          if constexpr (HasMinima(kChain)) sum = sums[FactorAt(pair, i * kParts + part)];
          a = AddTo<kType>(a, dot, w, part, 0, 0, sum);
        } else {
          left[(b * kParts + part) * kRows + row()] = ScaledOf<kType>(dot, w, part, 0, 0);
        }
      }
      if constexpr (Memory::kMinima > 0) {
        left[Memory::kMinimaAt + b * kRows + row()] = w.minimum[0][0];
      }
    }
  }

  // Where the scale or sum of part `at` of a pair's 2 × 32 inputs stands, in floats.
  KVCACHE_DEVICE int FactorAt(int pair, int at) const {
    return pair * (Memory::kPairFactors * 4) + at * 2 + parity_;
  }

  // Adds a section's terms to y.
  KVCACHE_DEVICE float AddSection(const float* section, int first, float y) const {
    const int end =
        first + Memory::kSectionChunks < chunks_ ? first + Memory::kSectionChunks : chunks_;
    if constexpr (kPer256) {
      const float* term = section + Thread();
      const float* scale = section + Memory::kFactorsAt + place_in_four_;
      KVCACHE_UNROLL_BY(4)
      for (int chunk = first; chunk < end; ++chunk) {
        y = Fma(*term, *scale, y);
        term += Memory::kLeftFloats;
        scale += Memory::kLeftFloats;
      }
    } else {
      KVCACHE_UNROLL_BY(1)
      for (int chunk = first; chunk < end; ++chunk) {
        const float* const left = section + (chunk - first) * Memory::kLeftFloats;
        const int blocks = BlocksOf(chunk);
        if (blocks == kBlocks) {
          KVCACHE_UNROLL
          for (int b = 0; b < kBlocks; ++b) y = AddBlock(left, b, y);
        } else {
          KVCACHE_UNROLL_BY(1)
          for (int b = 0; b < blocks; ++b) y = AddBlock(left, b, y);
        }
      }
    }
    return y;
  }

  // Adds the terms of the 32 inputs `b` of a chunk.
  KVCACHE_DEVICE float AddBlock(const float* left, int b, float y) const {
    const float* const factors = left + Memory::kFactorsAt;
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      y = Fma(left[(b * kParts + part) * kRows + Thread()],
              factors[FactorAt(b / 2, b % 2 * kParts + part)], y);
    }
    if constexpr (Memory::kMinima > 0) {
      y = Fma(left[Memory::kMinimaAt + b * kRows + row()],
              factors[Memory::kScaleUnits * 4 + FactorAt(b / 2, b % 2)], y);
    }
    return y;
  }

  const std::byte* panel_;
  int inputs_;
  int chunks_;
  int pairs_;
  int parity_;
  int place_in_four_;  // of the column
  std::byte* stages_;
  float* sections_;
  Unit unit_;  // the lane's
};

template <DType kType>
KVCACHE_DEVICE void MultiplyOne(const LinearArgs& args) {
  // Kernels may have written a list in memory.
  if (args.tasks.all != nullptr) WaitForEarlier();
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int index = BlockX() - task.first_block;
  const int column = index % task.columns;
  const std::int64_t panel = index / task.columns;
  using Kernel = OneKernel<kType>;
  const Kernel kernel(task, panel, column, SharedMemory<SharedBytes16>().at);
  kernel.Begin();
  WaitForEarlier();
  const float y = kernel.Run();
  const std::int64_t row = panel * block::kPanelRows + Thread();
  if (Thread() >= block::kPanelRows || row >= task.outputs) return;
  task.y[static_cast<std::int64_t>(column) * task.outputs + row] = y;
}

}  // namespace kvcache::cuda::linear
