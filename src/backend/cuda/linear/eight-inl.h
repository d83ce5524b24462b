// Products with two to eight columns, for one type of weights: bound by the memory of the weights.
//
// A block takes two panels and a tile of columns, so that inputs are read once for 32 rows. Its warps take chunks of
// 256 inputs in turn, and multiply them by the matrix instruction; the rest is as in one-inl.h. Per 256 inputs, each
// lane computes the scales of one row, and leaves them to the others.
#pragma once

#include "backend/cuda/linear/block_sums-inl.h"
#include "backend/cuda/linear/eight_memory.h"
#include "backend/cuda/linear/task-inl.h"

namespace kvcache::cuda::linear {

template <DType kType>
class EightKernel {
 public:
  using Memory = EightMemory<kType>;
  // Outputs of a thread, whose numbers are kEightThreads apart.
  static constexpr int kBlockOutputs = Memory::kPanels * Memory::kTermFloats;
  static constexpr int kOutputs = (kBlockOutputs + kEightThreads - 1) / kEightThreads;

  KVCACHE_DEVICE EightKernel(const LinearTask& task, std::int64_t first_panel, int tile,
                             std::byte* shared)
      : panel_bytes_(block::PanelBytes(kType, task.inputs)),
        weights_(task.weights + first_panel * panel_bytes_),
        spot_(SpotOfLane()),
        inputs_(task.inputs),
        chunks_((task.inputs + 255) / 256),
        pairs_(static_cast<int>(PairsOf(task.inputs))),
        panels_(first_panel + 1 < block::Panels(task.outputs) ? 2 : 1),
        columns_(task.columns - tile * kTileColumns),
        stages_(shared + Warp() * (Memory::kStages * Memory::kStageBytes)),
        sections_(reinterpret_cast<float*>(shared + Memory::kSectionsAt)),
        row_scales_(reinterpret_cast<float*>(shared + Memory::kRowScalesAt) +
                    Warp() * Memory::kWarpFloats) {
    const std::int64_t pairs = std::int64_t{tile} * pairs_;
    values_ = reinterpret_cast<const std::byte*>(task.x.values + pairs * kPairWords);
    scales_ = reinterpret_cast<const std::byte*>(
        kPer256 ? task.x.scales + std::int64_t{tile} * chunks_ * kTileColumns
                : task.x.scales + pairs * (Memory::kPairFactorBytes / 4));
    sums_ = reinterpret_cast<const std::byte*>((kParts == 2 ? task.x.halves : task.x.sums) +
                                               pairs * (Memory::kPairFactorBytes / 4));
  }

  // Starts to copy the weights of the first stages.
  KVCACHE_DEVICE void Begin() const {
    KVCACHE_UNROLL
    for (int i = 0; i < Memory::kStages; ++i) CopyWeights(Warp() + i * Memory::kWarps, i);
  }

  // Computes the outputs of this thread.
  KVCACHE_DEVICE void Run(float (&y)[kOutputs]) const {
    KVCACHE_UNROLL
    for (int i = 0; i < Memory::kStages; ++i) {
      CopyInputs(Warp() + i * Memory::kWarps, i);
      AsyncCommit();
    }
    KVCACHE_UNROLL
    for (float& output : y) output = 0.0f;
    float* section = sections_;
    float* other = sections_ + (Memory::kSections - 1) * Memory::kSectionFloats;
    int stage = 0;
    for (int first = 0; first < chunks_; first += Memory::kSectionChunks) {
      KVCACHE_UNROLL_BY(1)
      for (int round = 0; round < Memory::kRounds; ++round) {
        const int at = round * Memory::kWarps + Warp();
        const int chunk = first + at;
        if (chunk >= chunks_) break;
        AsyncWait<Memory::kStages - 1>();
        WarpBarrier();  // the chunks are there for all lanes
        Multiply(chunk, stages_ + stage * Memory::kStageBytes, section + at * Memory::kLeftFloats);
        WarpBarrier();  // all have read them
        const int next = chunk + Memory::kStages * Memory::kWarps;
        CopyWeights(next, stage);
        CopyInputs(next, stage);
        AsyncCommit();
        stage = stage + 1 == Memory::kStages ? 0 : stage + 1;
      }
      BlockBarrier();
      KVCACHE_UNROLL
      for (int i = 0; i < kOutputs; ++i) {
        if (output(i) < kBlockOutputs) y[i] = AddSection(section, first, output(i), y[i]);
      }
      if (Memory::kSections == 1 && first + Memory::kSectionChunks < chunks_) BlockBarrier();
      float* const read = section;
      section = other;
      other = read;
    }
  }

  // The thread's output `i`: [panel][row][column].
  static KVCACHE_DEVICE int output(int i) { return i * kEightThreads + Thread(); }

 private:
  static constexpr Chain kChain = Memory::kChain;
  static constexpr int kParts = Memory::kParts;
  static constexpr bool kPer256 = IsPer256(kChain);
  static constexpr int kBlocks = static_cast<int>(block::kChunkBlocks);
  static constexpr int kRows = Memory::kRows;
  static constexpr int kBodyBytes = static_cast<int>(block::LayoutOf(kType).body_bytes);

  KVCACHE_DEVICE int BlocksOf(int chunk) const {
    const int rest = inputs_ / 32 - chunk * kBlocks;
    return kPer256 || rest > kBlocks ? kBlocks : rest;
  }

  // Copies `bytes` bytes, at most kMost, 16 by 16.
  template <int kMost>
  static KVCACHE_DEVICE void CopyBytes(const std::byte* from, int bytes, std::byte* to) {
    KVCACHE_UNROLL
    for (int i = 0; i < kMost; i += 512) {
      if (i + Lane() * 16 < bytes) AsyncCopy16(to + i + Lane() * 16, from + i + Lane() * 16);
    }
  }

  // Start to copy a chunk of the panels, and its inputs, if it is there.
  KVCACHE_DEVICE void CopyWeights(int chunk, int stage) const {
    if (chunk >= chunks_) return;
    const auto bytes = static_cast<int>(block::ChunkBytes(kType, BlocksOf(chunk)));
    KVCACHE_UNROLL
    for (int p = 0; p < Memory::kPanels; ++p) {
      if (p >= panels_) break;
      CopyBytes<Memory::kChunkBytes>(
          weights_ + p * panel_bytes_ + static_cast<std::int64_t>(chunk) * Memory::kChunkBytes,
          bytes, stages_ + stage * Memory::kStageBytes + p * Memory::kChunkBytes);
    }
  }
  KVCACHE_DEVICE void CopyInputs(int chunk, int stage) const {
    if (chunk >= chunks_) return;
    std::byte* const to = stages_ + stage * Memory::kStageBytes;
    const int left = pairs_ - chunk * Memory::kPairs;
    const int pairs = left < Memory::kPairs ? left : Memory::kPairs;
    const std::int64_t at = chunk;
    if (spot_.g < columns_) {
      CopyBytes<Memory::kValueBytes>(values_ + at * Memory::kValueBytes, pairs * (kPairWords * 4),
                                     to + Memory::kInputsAt);
    }
    CopyBytes<Memory::kScaleBytes>(scales_ + at * Memory::kScaleBytes,
                                   kPer256 ? Memory::kScaleBytes : pairs * Memory::kPairFactorBytes,
                                   to + Memory::kScalesAt);
    CopyBytes<Memory::kSumBytes>(sums_ + at * Memory::kSumBytes, pairs * Memory::kPairFactorBytes,
                                 to + Memory::kSumsAt);
  }

  // Multiplies a chunk of the panels, and leaves what the section gets of it.
  KVCACHE_DEVICE void Multiply(int chunk, const std::byte* stage, float* left) const {
    if constexpr (kPer256) {
      LeaveScales(stage);
      WarpBarrier();
    }
    const int blocks = BlocksOf(chunk);
    KVCACHE_UNROLL_BY(1)
    for (int p = 0; p < panels_; ++p) {
      const std::byte* const weights = stage + p * Memory::kChunkBytes;
      float* const of_panel = left + p * Memory::kPanelFloats;
      float a[2][2] = {};
      if (blocks == kBlocks) {
        const std::byte* const body = weights + block::HeadBytes(kType, kBlocks);
        KVCACHE_UNROLL
        for (int pair = 0; pair < Memory::kPairs; ++pair) {
          MultiplyPair<2>(weights, body, stage, p, pair, of_panel, a);
        }
      } else {
        const std::byte* const body = weights + block::HeadBytes(kType, blocks);
        KVCACHE_UNROLL_BY(1)
        for (int pair = 0; 2 * pair < blocks; ++pair) {
          if (2 * pair + 1 < blocks) {
            MultiplyPair<2>(weights, body, stage, p, pair, of_panel, a);
          } else {
            MultiplyPair<1>(weights, body, stage, p, pair, of_panel, a);
          }
        }
      }
      if constexpr (kPer256) Leave(of_panel, a);
    }
    const auto* const factors = reinterpret_cast<const Words4*>(stage + Memory::kScalesAt);
    auto* const kept = reinterpret_cast<Words4*>(left + Memory::kFactorsAt);
    KVCACHE_UNROLL
    for (int i = 0; i < Memory::kFactorBytes / 16; i += 32) {
      // Those behind the last pair hold nothing, and are not read.
      const int unit = i + Lane();
      constexpr int kPairUnits = Memory::kPairFactorBytes / 16;
      const int pair = kPer256 ? 0 : unit % (Memory::kScaleBytes / 16) / kPairUnits;
      if (unit < Memory::kFactorBytes / 16 && 2 * pair < blocks) kept[unit] = factors[unit];
    }
  }

  // Leaves the scales and minima of a row for each of a chunk's 8 × 32 inputs.
  KVCACHE_DEVICE void LeaveScales(const std::byte* stage) const {
    const int p = Lane() / kRows;
    if (p >= panels_) return;
    const RowSpot spot = {Lane() % kRows, 0};
    const std::byte* const weights = stage + p * Memory::kChunkBytes;
    const OuterHead outer = LoadOuter<kType, OneRowOfShared>(weights, spot);
    KVCACHE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      RowScales<kType> scales{};
      MakeRowScales<kType, 0>(outer, LoadInner<kType, OneRowOfShared>(weights, b, spot), b, scales);
      float* const to = RowScalesAt(p, b, spot.row());
      KVCACHE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        to[part] = scales.scale[part][0];
        if constexpr (HasMinima(kChain)) to[kParts + part] = scales.minimum[part][0];
      }
    }
  }
  KVCACHE_DEVICE float* RowScalesAt(int panel, int b, int row) const {
    return row_scales_ + ((panel * kBlocks + b) * kRows + row) * Memory::kRowFloats;
  }

  // The scales of the lane's rows for the 32 inputs `b`.
  KVCACHE_DEVICE Factors<kType> FactorsOf(const std::byte* weights, int panel, int b) const {
    if constexpr (kPer256) {
      RowScales<kType> scales{};
      KVCACHE_UNROLL
      for (int row = 0; row < 2; ++row) {
        const float* const from = RowScalesAt(panel, b, spot_.row() + row);
        KVCACHE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          scales.scale[part][row] = from[part];
          if constexpr (HasMinima(kChain)) scales.minimum[part][row] = from[kParts + part];
        }
      }
      return Factors<kType>(scales);
    } else {
      return Factors<kType>(
          MakeScales<kType>(OuterHead{}, LoadInner<kType, FromShared>(weights, b, spot_), b));
    }
  }

  // Leaves a value for each of the lane's rows and columns.
  KVCACHE_DEVICE void Leave(float* term, const float (&values)[2][2]) const {
    KVCACHE_UNROLL
    for (int row = 0; row < 2; ++row) {
      auto* const to =
          reinterpret_cast<Words2*>(term + (spot_.row() + row) * kTileColumns + 2 * spot_.t);
      *to = {{BitsOf(values[row][0]), BitsOf(values[row][1])}};
    }
  }

  // Multiplies the first kCount × 32 inputs of a pair. Per 256 inputs, adds to `a`; else leaves the terms.
  template <int kCount>
  KVCACHE_DEVICE void MultiplyPair(const std::byte* weights, const std::byte* body,
                                   const std::byte* stage, int panel, int pair, float* left,
                                   float (&a)[2][2]) const {
    Words4 four = {};
    if (spot_.g < columns_) {
      four = FromShared::Load<Words4>(stage + Memory::kInputsAt + pair * (kPairWords * 4) +
                                      Lane() * 16);
    }
    KVCACHE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int b = 2 * pair + i;
      std::uint32_t fragment[4];
      MakeFragment<kType>(LoadLines<kType, FromShared>(body + b * kBodyBytes, spot_), spot_,
                          fragment);
      const Factors<kType> w = FactorsOf(weights, panel, b);
      const Dots<kParts> dots =
          DotsOf<kParts>(starts_, fragment, {four.at[2 * i], four.at[2 * i + 1]});
      KVCACHE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        float values[2][2];
        Words2 sums = {};
        if constexpr (kPer256 && HasMinima(kChain)) {
          sums =
              FromShared::Load<Words2>(stage + Memory::kSumsAt + pair * Memory::kPairFactorBytes +
                                       spot_.t * (16 * kParts) + (i * kParts + part) * 8);
        }
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) {
          float& to = kPer256 ? a[j / 2][j % 2] : values[j / 2][j % 2];
          if constexpr (kPer256) {
            to = AddTo<kType>(to, dots, w, part, j / 2, j % 2, FloatOf(sums.row[j % 2]));
          } else {
            to = ScaledOf<kType>(dots, w, part, j / 2, j % 2);
          }
        }
        if constexpr (!kPer256) Leave(left + (b * kParts + part) * Memory::kTermFloats, values);
      }
      if constexpr (Memory::kMinima > 0) {
        if (spot_.t == 0) {
          left[Memory::kMinimaAt + b * kRows + spot_.row()] = w.minimum[0][0];
          left[Memory::kMinimaAt + b * kRows + spot_.row() + 1] = w.minimum[0][1];
        }
      }
    }
  }

  // Adds a section's terms of an output to y.
  KVCACHE_DEVICE float AddSection(const float* section, int first, int output, float y) const {
    const int end =
        first + Memory::kSectionChunks < chunks_ ? first + Memory::kSectionChunks : chunks_;
    const int panel = output / Memory::kTermFloats;
    if (panel >= panels_) return y;
    const int column = output % kTileColumns;
    const float* left = section;
    KVCACHE_UNROLL_BY(1)
    for (int chunk = first; chunk < end; ++chunk) {
      const float* const of_panel = left + panel * Memory::kPanelFloats;
      const float* const term = of_panel + output % Memory::kTermFloats;
      const float* const factors = left + Memory::kFactorsAt;
      if constexpr (kPer256) {
        y = Fma(*term, factors[column], y);
      } else {
        const float* const minima =
            of_panel + Memory::kMinimaAt + output % Memory::kTermFloats / kTileColumns;
        const float* const scales = factors + column / 2 * (4 * kParts) + column % 2;
        const int blocks = BlocksOf(chunk);
        if (blocks == kBlocks) {
          KVCACHE_UNROLL
          for (int b = 0; b < kBlocks; ++b) y = AddBlock(term, minima, scales, b, y);
        } else {
          KVCACHE_UNROLL_BY(1)
          for (int b = 0; b < blocks; ++b) y = AddBlock(term, minima, scales, b, y);
        }
      }
      left += Memory::kLeftFloats;
    }
    return y;
  }

  // Adds the terms of the 32 inputs `b` of a chunk.
  static KVCACHE_DEVICE float AddBlock(const float* term, const float* minima, const float* scales,
                                       int b, float y) {
    const float* const of_pair = scales + b / 2 * (Memory::kPairFactorBytes / 4);
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      y = Fma(term[(b * kParts + part) * Memory::kTermFloats], of_pair[(b % 2 * kParts + part) * 2],
              y);
    }
    if constexpr (Memory::kMinima > 0) {
      y = Fma(minima[b * kRows], of_pair[Memory::kScaleBytes / 4 + b % 2 * 2], y);
    }
    return y;
  }

  std::int64_t panel_bytes_;
  const std::byte* weights_;  // of the first panel
  const std::byte* values_;   // the tile's
  const std::byte* scales_;   // the tile's
  const std::byte* sums_;     // the tile's: halves, if minima are per 16
  Spot spot_;
  Starts starts_;
  int inputs_;
  int chunks_;
  int pairs_;
  int panels_;
  int columns_;  // of this tile and those behind it
  std::byte* stages_;
  float* sections_;
  float* row_scales_;
};

template <DType kType>
KVCACHE_DEVICE void MultiplyEight(const LinearArgs& args) {
  using Kernel = EightKernel<kType>;
  constexpr int kPanels = Kernel::Memory::kPanels;
  // Kernels may have written a list in memory.
  if (args.tasks.all != nullptr) WaitForEarlier();
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int tiles = static_cast<int>(TilesOf(task.columns));
  const int index = BlockX() - task.first_block;
  const int tile = index % tiles;
  const std::int64_t first_panel = std::int64_t{index / tiles} * kPanels;
  const Kernel kernel(task, first_panel, tile, SharedMemory<SharedBytes16>().at);
  kernel.Begin();
  WaitForEarlier();
  float y[Kernel::kOutputs];
  kernel.Run(y);
  KVCACHE_UNROLL
  for (int i = 0; i < Kernel::kOutputs; ++i) {
    const int output = Kernel::output(i);
    const std::int64_t row = first_panel * block::kPanelRows + output / kTileColumns;
    const std::int64_t column = tile * kTileColumns + output % kTileColumns;
    if (output < Kernel::kBlockOutputs && row < task.outputs && column < task.columns) {
      task.y[column * task.outputs + row] = y[i];
    }
  }
}

}  // namespace kvcache::cuda::linear
