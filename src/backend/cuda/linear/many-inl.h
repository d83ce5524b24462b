// Products with many columns, for one type of weights: bound by arithmetic.
//
// A block takes a tile of panels and columns (many_memory.h). Its threads copy the inputs to shared memory,
// a pair of 32 at a time, some pairs ahead. Each warp reads its own panels from global memory, one pair
// ahead, in registers, and makes fragments of them once for all of its columns. All chains are in registers.
#pragma once

#include "backend/cuda/linear/block_sums-inl.h"
#include "backend/cuda/linear/many_memory.h"
#include "backend/cuda/linear/task-inl.h"

namespace kvcache::cuda::linear {

template <DType kType>
class ManyKernel {
 public:
  KVCACHE_DEVICE ManyKernel(const LinearTask& task, int first_panel, int first_tile,
                            std::byte* shared)
      : task_(task),
        spot_(SpotOfLane()),
        first_panel_(first_panel + Warp() % Memory::kRowWarps * kPanels),
        first_tile_(first_tile),
        warp_tile_(Warp() / Memory::kRowWarps * kTiles),
        last_tile_(static_cast<int>(TilesOf(task.columns)) - 1),
        blocks_(task.inputs / 32),
        pairs_(static_cast<int>(PairsOf(task.inputs))),
        shared_(shared) {
    const auto last = static_cast<int>(block::Panels(task.outputs)) - 1;
    const std::int64_t bytes = block::PanelBytes(kType, task.inputs);
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const int panel = first_panel_ + p < last ? first_panel_ + p : last;
      panels_[p] = task.weights + panel * bytes;
    }
  }

  KVCACHE_DEVICE void Run() {
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < Memory::kStages; ++i) Copy(i, i);
    Held held;
    Load(0, held);
    Sums y = {};
    Sums a = {};
    int stage = 0;
    KVCACHE_UNROLL_BY(1)
    for (int pair = 0; pair < pairs_; ++pair) {
      AsyncWait<Memory::kStages - 2>();
      BlockBarrier();
      // All have read the stage of the pair before.
      Copy(pair + Memory::kStages - 1, stage == 0 ? Memory::kStages - 1 : stage - 1);
      const std::byte* const x = shared_ + stage * Memory::kStageBytes;
      if (kPer256 || 2 * pair + 1 < blocks_) {
        Multiply<2>(pair, x, held, y, a);
      } else {
        Multiply<1>(pair, x, held, y, a);
      }
      if constexpr (kPer256) {
        if (pair % 4 == 3) AddChunk(pair / 4, y, a);
      }
      stage = stage + 1 == Memory::kStages ? 0 : stage + 1;
    }
    Store(y);
  }

 private:
  using Memory = ManyMemory<kType>;
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  static constexpr bool kPer256 = IsPer256(kChain);
  static constexpr int kPanels = Memory::kPanels;
  static constexpr int kTiles = Memory::kTiles;
  static constexpr int kBodyBytes = static_cast<int>(block::LayoutOf(kType).body_bytes);
  static constexpr int kChunkBytes = static_cast<int>(block::ChunkBytes(kType, 8));

  // [panel][tile][row][column]
  struct Sums {
    float at[kPanels][kTiles][2][2];
  };

  // What a lane holds of the next pair.
  struct Held {
    OuterHead outer[kPanels];
    InnerHead<kType> inner[kPanels][2];
    Lines<kType> lines[kPanels][2];
  };

  // Starts to copy a pair of all tiles to a stage, if there is one, and closes the group of copies. Tiles
  // behind the last one are copies of it, and their products are not stored.
  KVCACHE_DEVICE void Copy(int pair, int stage) const {
    if (pair < pairs_) {
      std::byte* const to = shared_ + stage * Memory::kStageBytes;
      CopyTiles<Memory::kValueBytes>(task_.x.values, pair, to);
      if constexpr (!kPer256) {
        CopyTiles<Memory::kScaleBytes>(task_.x.scales, pair, to + Memory::kScalesAt);
      }
      if constexpr (HasMinima(kChain)) {
        const float* const sums = kParts == 2 ? task_.x.halves : task_.x.sums;
        CopyTiles<Memory::kSumBytes>(sums, pair, to + Memory::kSumsAt);
      }
    }
    AsyncCommit();
  }

  // Copies kBytes of each tile, 16 by 16.
  template <int kBytes>
  KVCACHE_DEVICE void CopyTiles(const void* array, int pair, std::byte* to) const {
    constexpr int kUnits = kBytes / 16;  // of a tile
    constexpr int kAll = Memory::kTilesOfBlock * kUnits;
    KVCACHE_UNROLL
    for (int i = 0; i < kAll; i += kManyThreads) {
      const int unit = i + Thread();
      if (kAll % kManyThreads != 0 && unit >= kAll) break;
      const int wanted = first_tile_ + unit / kUnits;
      const int tile = wanted < last_tile_ ? wanted : last_tile_;
      const std::int64_t place = static_cast<std::int64_t>(tile) * pairs_ + pair;
      AsyncCopy16(to + unit * 16,
                  static_cast<const std::byte*>(array) + place * kBytes + unit % kUnits * 16);
    }
  }

  // Loads a pair of the warp's panels; a 32 inputs that are not there are those before them.
  KVCACHE_DEVICE void Load(int pair, Held& held) const {
    const int chunk = pair / 4;
    const int rest = blocks_ - chunk * 8;
    const int blocks = kPer256 || rest > 8 ? 8 : rest;
    const auto body = static_cast<int>(block::HeadBytes(kType, blocks));
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* const at = panels_[p] + static_cast<std::int64_t>(chunk) * kChunkBytes;
      if constexpr (kPer256) {
        if (pair % 4 == 0) held.outer[p] = LoadOuter<kType, FromGlobal>(at, spot_);
      }
      KVCACHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int wanted = pair % 4 * 2 + i;
        const int b = kPer256 || wanted < blocks ? wanted : blocks - 1;
        held.inner[p][i] = LoadInner<kType, FromGlobal>(at, b, spot_);
        held.lines[p][i] = LoadLines<kType, FromGlobal>(at + body + b * kBodyBytes, spot_);
      }
    }
  }

  // Multiplies the kBlocks × 32 inputs of a pair, and loads the next one.
  template <int kBlocks>
  KVCACHE_DEVICE void Multiply(int pair, const std::byte* x, Held& held, Sums& y, Sums& a) const {
    std::uint32_t fragments[kPanels][kBlocks][4];
    Factors<kType> w[kPanels][kBlocks];
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        MakeFragment<kType>(held.lines[p][i], spot_, fragments[p][i]);
        w[p][i] =
            Factors<kType>(MakeScales<kType>(held.outer[p], held.inner[p][i], pair % 4 * 2 + i));
      }
    }
    if (pair + 1 < pairs_) Load(pair + 1, held);
    KVCACHE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int at = warp_tile_ + tile;
      const Words4 columns = FromShared::Load<Words4>(x + at * Memory::kValueBytes + Lane() * 16);
      float scales[2 * kParts][2];
      float sums[2 * kParts][2];
      if constexpr (!kPer256) TakeFloats(x + Memory::kScalesAt, at, scales);
      if constexpr (HasMinima(kChain)) TakeFloats(x + Memory::kSumsAt, at, sums);
      KVCACHE_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        KVCACHE_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          const Dots<kParts> dots =
              DotsOf<kParts>(fragments[p][i], {columns.at[2 * i], columns.at[2 * i + 1]});
          KVCACHE_UNROLL
          for (int part = 0; part < kParts; ++part) {
            KVCACHE_UNROLL
            for (int j = 0; j < 4; ++j) {
              const int row = j / 2;
              const int column = j % 2;
              const int place = i * kParts + part;
              if constexpr (kPer256) {
                float& sum = a.at[p][tile][row][column];
                sum = AddTo<kType>(sum, dots, w[p][i], part, row, column, sums[place][column]);
              } else {
                float& sum = y.at[p][tile][row][column];
                const float scaled = ScaledOf<kType>(dots, w[p][i], part, row, column);
                sum = Fma(scaled, scales[place][column], sum);
                if constexpr (HasMinima(kChain)) {
                  sum = Fma(w[p][i].minimum[part][row], sums[place][column], sum);
                }
              }
            }
          }
        }
      }
    }
  }

  // Takes the lane's floats of a tile: [32 inputs and part][column].
  KVCACHE_DEVICE void TakeFloats(const std::byte* array, int tile,
                                 float (&to)[2 * kParts][2]) const {
    const std::byte* const at = array + tile * (64 * kParts) + spot_.t * (16 * kParts);
    KVCACHE_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const Words4 four = FromShared::Load<Words4>(at + i * 16);
      KVCACHE_UNROLL
      for (int j = 0; j < 4; ++j) to[2 * i + j / 2][j % 2] = FloatOf(four.at[j]);
    }
  }

  // Adds a chunk's sums to y.
  KVCACHE_DEVICE void AddChunk(int chunk, Sums& y, Sums& a) const {
    const std::int64_t chunks = task_.inputs / 256;
    KVCACHE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int wanted = first_tile_ + warp_tile_ + tile;
      const int at = wanted < last_tile_ ? wanted : last_tile_;
      const Words2 scales = LoadOnly(reinterpret_cast<const Words2*>(
          task_.x.scales + (at * chunks + chunk) * kTileColumns + 2 * spot_.t));
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) {
          float& sum = a.at[p][tile][j / 2][j % 2];
          float& to = y.at[p][tile][j / 2][j % 2];
          to = Fma(sum, FloatOf(scales.row[j % 2]), to);
          sum = 0.0f;
        }
      }
    }
  }

  KVCACHE_DEVICE void Store(const Sums& y) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) {
          const int row = (first_panel_ + p) * 16 + 2 * spot_.g + j / 2;
          const int column = (first_tile_ + warp_tile_ + tile) * kTileColumns + 2 * spot_.t + j % 2;
          if (row < task_.outputs && column < task_.columns) {
            task_.y[static_cast<std::int64_t>(column) * task_.outputs + row] =
                y.at[p][tile][j / 2][j % 2];
          }
        }
      }
    }
  }

  LinearTask task_;
  Spot spot_;
  int first_panel_;  // the warp's
  int first_tile_;   // the block's
  int warp_tile_;    // the warp's first in the block
  int last_tile_;    // of the task
  int blocks_;       // of 32 inputs
  int pairs_;
  std::byte* shared_;
  const std::byte* panels_[kPanels];
};

template <DType kType>
KVCACHE_DEVICE void MultiplyMany(const LinearArgs& args) {
  using Memory = ManyMemory<kType>;
  const LinearTask task = TaskOfBlock(args.tasks);
  const int tiles =
      static_cast<int>((TilesOf(task.columns) + Memory::kTilesOfBlock - 1) / Memory::kTilesOfBlock);
  const int index = BlockX() - task.first_block;
  // Blocks that run at the same time share weights.
  ManyKernel<kType>(task, index / tiles * Memory::kPanelsOfBlock,
                    index % tiles * Memory::kTilesOfBlock, SharedMemory<SharedBytes16>().at)
      .Run();
}

}  // namespace kvcache::cuda::linear
