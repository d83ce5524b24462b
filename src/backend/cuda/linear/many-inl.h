// Products with many columns, for one type of weights: bound by arithmetic.
//
// A block takes a tile of panels and columns (many_memory.h). Its threads copy both to shared memory, a pair of 32
// inputs at a time, three pairs ahead; the first weights, which no kernel writes, before the inputs are there. Each warp
// makes fragments of its panels once for all of its columns. All chains of a chunk are in registers. The four pairs of a
// chunk are written out, so that all places in memory are constants.
#pragma once

#include "backend/cuda/linear/block_sums-inl.h"
#include "backend/cuda/linear/many_memory.h"
#include "backend/cuda/linear/task-inl.h"
#include "backend/cuda/linear/tile_copy-inl.h"

namespace kvcache::cuda::linear {

template <DType kType, ManyShape kShape>
class ManyKernel {
 public:
  KVCACHE_DEVICE ManyKernel(const LinearTask& task, int first_panel, int first_tile,
                            std::byte* shared)
      : ManyKernel(task, first_panel, first_tile, static_cast<int>(TilesOf(task.columns)) - 1,
                   PairsOf(task.inputs), shared) {}

  // Starts to copy the first weights.
  KVCACHE_DEVICE void Begin() const {
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < kPairs; ++i) {
      if (i < pairs_) CopyWeights(i, i);
    }
  }

  KVCACHE_DEVICE void Run() {
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < kPairs; ++i) {
      if (i < pairs_) CopyInputs(i);
      AsyncCommit();
    }
    Sums y = {};
    if constexpr (Memory::kKeepsSums) {
      KVCACHE_UNROLL
      for (int i = 0; i < kPanels * kTiles; ++i) *KeptSums(i) = {};
    }
    const int chunks = blocks_ / 8;
    KVCACHE_UNROLL_BY(1)
    for (int chunk = 0; chunk < chunks; ++chunk) RunChunk(chunk, y);
    if constexpr (!kPer256) {
      if (blocks_ % 8 > 0) RunRest(chunks, y);
    }
    Store(y);
  }

 private:
  using Memory = ManyMemory<kType, kShape>;
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  static constexpr bool kPer256 = IsPer256(kChain);
  static constexpr bool kSharesScales = Memory::kSharesScales;
  static constexpr int kPanels = kShape.panels;
  static constexpr int kTiles = kShape.tiles;
  static constexpr int kPairs = 4;  // of a chunk
  static constexpr int kBodyBytes = static_cast<int>(block::LayoutOf(kType).body_bytes);
  static constexpr int kHeadBytes = static_cast<int>(block::HeadBytes(kType, 8));
  static constexpr int kChunkBytes = static_cast<int>(block::ChunkBytes(kType, 8));
  static_assert(Memory::kStages == kPairs);

  // [panel][tile][row][column]
  struct Sums {
    float at[kPanels][kTiles][2][2];
  };

  KVCACHE_DEVICE ManyKernel(const LinearTask& task, int first_panel, int first_tile, int last_tile,
                            std::int64_t pairs, std::byte* shared)
      : task_(task),
        spot_(SpotOfLane()),
        starts_(Starts::Hidden(task)),
        first_panel_(first_panel + Warp() % Memory::kRowWarps * kPanels),
        first_tile_(first_tile),
        warp_tile_(Warp() / Memory::kRowWarps * kTiles),
        blocks_(task.inputs / 32),
        pairs_(static_cast<int>(pairs)),
        shared_(shared),
        values_(task.x.values, pairs * Memory::kValueBytes, first_tile, last_tile),
        scales_(task.x.scales, (kPer256 ? pairs / kPairs : pairs) * Memory::kScaleBytes, first_tile,
                last_tile),
        sums_(kParts == 2 ? task.x.halves : task.x.sums, pairs * Memory::kSumBytes, first_tile,
              last_tile),
        bodies_(task.weights + BodiesAt(task.inputs / 32), block::PanelBytes(kType, task.inputs),
                first_panel, LastPanel(task)),
        heads_(task.weights, block::PanelBytes(kType, task.inputs), first_panel, LastPanel(task)) {}

  static KVCACHE_DEVICE int LastPanel(const LinearTask& task) {
    return static_cast<int>(block::Panels(task.outputs)) - 1;
  }
  // Where the bodies of a chunk with `left` × 32 inputs, or more, begin.
  static KVCACHE_DEVICE int BodiesAt(int left) {
    return kPer256 || left >= 8 ? kHeadBytes : static_cast<int>(block::HeadBytes(kType, left));
  }

  // Start to copy pair `pair` of the chunk where the copies stand, which is pair `index` of all, to its stage.
  KVCACHE_DEVICE void CopyWeights(int pair, int index) const {
    std::byte* const to = shared_ + pair * Memory::kStageBytes;
    if (!kPer256 && 2 * index + 1 == blocks_) {
      bodies_.template Start<kBodyBytes>(to + Memory::kBodiesAt, pair * Memory::kPairBodyBytes);
    } else {
      bodies_.Start(to + Memory::kBodiesAt, pair * Memory::kPairBodyBytes);
    }
    if constexpr (!kPer256) {
      heads_.Start(to + Memory::kPairHeadsAt, pair * Memory::kPairHeadBytes);
    } else if (pair == 0) {
      heads_.Start(shared_ + Memory::kHeadsAt, 0);
    }
  }
  KVCACHE_DEVICE void CopyInputs(int pair) const {
    std::byte* const to = shared_ + pair * Memory::kStageBytes;
    values_.Start(to, pair * Memory::kValueBytes);
    if constexpr (!kPer256) {
      scales_.Start(to + Memory::kScalesAt, pair * Memory::kScaleBytes);
    } else if (pair == kPairs - 1) {
      scales_.Start(to + Memory::kScalesAt, 0);
    }
    sums_.Start(to + Memory::kSumsAt, pair * Memory::kSumBytes);
  }
  // Moves the copies to chunk `chunk`, the next one.
  KVCACHE_DEVICE void AdvanceCopies(int chunk) {
    values_.Advance(kPairs * Memory::kValueBytes);
    scales_.Advance(kPer256 ? Memory::kScaleBytes : kPairs * Memory::kScaleBytes);
    sums_.Advance(kPairs * Memory::kSumBytes);
    bodies_.Advance(kChunkBytes - kHeadBytes + BodiesAt(blocks_ - chunk * 8));
    heads_.Advance(kChunkBytes);
  }

  // Waits for pair `pair` of a chunk, and starts the copy of the one three pairs later, whose stage all
  // threads have read.
  KVCACHE_DEVICE void NextStage(int chunk, int pair) {
    AsyncWait<kPairs - 2>();
    BlockBarrier();
    if (pair == 1) AdvanceCopies(chunk + 1);
    const int next = (pair + kPairs - 1) % kPairs;
    const int index = chunk * kPairs + pair + kPairs - 1;
    if (index < pairs_) {
      CopyInputs(next);
      CopyWeights(next, index);
    }
    AsyncCommit();
  }

  // The warp's panel in the block.
  static KVCACHE_DEVICE int OwnPanel(int panel) {
    return Warp() % Memory::kRowWarps * kPanels + panel;
  }

  // Where the lane's rows have their shared scales of the 32 inputs `b`.
  KVCACHE_DEVICE Words2* SharedScales(int panel, int b) const {
    return reinterpret_cast<Words2*>(shared_ + Memory::kFactorsAt) +
           (Warp() * Memory::kWarpFloats +
            ((panel * 8 + b) * 8 + spot_.g) * Memory::kSharedFloats) /
               2;
  }

  // Computes the scales of pair t of a chunk for all lanes of the rows. All lanes have used those of the chunk before.
  KVCACHE_DEVICE void ShareScales() const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* const head = HeadOf(p);
      const OuterHead outer = LoadOuter<kType, FromShared>(head, spot_);
      KVCACHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int b = 2 * spot_.t + i;
        const RowScales<kType> scales =
            MakeScales<kType>(outer, LoadInner<kType, FromShared>(head, b, spot_), b);
        Words2* const to = SharedScales(p, b);
        KVCACHE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          to[part] = {BitsOf(scales.scale[part][0]), BitsOf(scales.scale[part][1])};
          if constexpr (HasMinima(kChain)) {
            to[kParts + part] = {BitsOf(scales.minimum[part][0]), BitsOf(scales.minimum[part][1])};
          }
        }
      }
    }
    WarpBarrier();
  }

  // The head of a panel's chunk.
  KVCACHE_DEVICE const std::byte* HeadOf(int panel) const {
    return shared_ + Memory::kHeadsAt + OwnPanel(panel) * Memory::kHeadBytes;
  }

  KVCACHE_DEVICE RowScales<kType> TakeScales(int panel, int b) const {
    const Words2* const from = SharedScales(panel, b);
    constexpr int kCount = Memory::kSharedFloats;
    std::uint32_t words[kCount];
    KVCACHE_UNROLL
    for (int i = 0; i < kCount; i += 4) {
      if constexpr (kCount == 2) {
        words[0] = from->row[0];
        words[1] = from->row[1];
      } else {
        const Words4 four = reinterpret_cast<const Words4*>(from)[i / 4];
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) words[i + j] = four.at[j];
      }
    }
    RowScales<kType> scales{};
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      KVCACHE_UNROLL
      for (int row = 0; row < 2; ++row) {
        scales.scale[part][row] = FloatOf(words[2 * part + row]);
        if constexpr (HasMinima(kChain)) {
          scales.minimum[part][row] = FloatOf(words[2 * (kParts + part) + row]);
        }
      }
    }
    return scales;
  }

  // A whole chunk.
  KVCACHE_DEVICE void RunChunk(int chunk, Sums& y) {
    Sums a = {};
    OuterHead outer[kPanels];
    KVCACHE_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      NextStage(chunk, pair);
      if constexpr (kSharesScales) {
        if (pair == 0) ShareScales();
      } else if constexpr (kPer256) {
        if (pair == 0) {
          KVCACHE_UNROLL
          for (int p = 0; p < kPanels; ++p) {
            outer[p] = LoadOuter<kType, FromShared>(HeadOf(p), spot_);
          }
        }
      }
      const std::byte* const stage = shared_ + pair * Memory::kStageBytes;
      Operands<2> w;
      MakeOperands(outer, stage, 2 * pair, 0, w);
      Multiply(w, stage, kPer256 ? a : y);
    }
    if constexpr (kPer256) AddChunk(shared_ + 3 * Memory::kStageBytes, a, y);
  }

  // The last inputs, which do not fill a chunk.
  KVCACHE_DEVICE void RunRest(int chunk, Sums& y) {
    const int blocks = blocks_ - chunk * 8;
    KVCACHE_UNROLL_BY(1)
    for (int b = 0; b < blocks; ++b) {
      const int pair = b / 2;
      if (b % 2 == 0) NextStage(chunk, pair);
      const std::byte* const stage = shared_ + pair * Memory::kStageBytes;
      const OuterHead outer[kPanels] = {};
      Operands<1> w;
      MakeOperands(outer, stage, b, b % 2, w);
      MultiplyOne(w, stage, b % 2, y);
    }
  }

  // The fragments and factors of kBlocks × 32 inputs.
  template <int kBlocks>
  struct Operands {
    std::uint32_t fragments[kPanels][kBlocks][4];
    Factors<kType> factors[kPanels][kBlocks];
  };

  // `b`: which 32 inputs of the chunk are the first; `second`: 1, if they are the second of their pair.
  template <int kBlocks>
  KVCACHE_DEVICE void MakeOperands(const OuterHead (&outer)[kPanels], const std::byte* stage, int b,
                                   int second, Operands<kBlocks>& to) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* const body =
          stage + Memory::kBodiesAt + OwnPanel(p) * Memory::kPairBodyBytes;
      const std::byte* const heads =
          stage + Memory::kPairHeadsAt + OwnPanel(p) * Memory::kPairHeadBytes;
      KVCACHE_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        MakeFragment<kType>(LoadLines<kType, FromShared>(body + (second + i) * kBodyBytes, spot_),
                            spot_, to.fragments[p][i]);
        if constexpr (kSharesScales) {
          to.factors[p][i] = Factors<kType>(TakeScales(p, b + i));
        } else {
          to.factors[p][i] = Factors<kType>(MakeScales<kType>(
              outer[p], LoadInner<kType, FromShared>(heads, second + i, spot_), b + i));
        }
      }
    }
  }

  // What a lane has of a tile's inputs in a pair.
  struct TileInputs {
    Words4 values;
    float scales[2 * kParts][2];  // [32 inputs and part][column]
    float sums[2 * kParts][2];
  };

  KVCACHE_DEVICE TileInputs Take(const std::byte* stage, int tile) const {
    TileInputs to;
    const int at = warp_tile_ + tile;
    to.values = FromShared::Load<Words4>(stage + at * Memory::kValueBytes + Lane() * 16);
    if constexpr (!kPer256) TakeFloats(stage + Memory::kScalesAt, at, to.scales);
    if constexpr (HasMinima(kChain)) TakeFloats(stage + Memory::kSumsAt, at, to.sums);
    return to;
  }
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

  // Multiplies a pair. `to` is the sum of all inputs or, per 256, of the chunk.
  KVCACHE_DEVICE void Multiply(const Operands<2>& w, const std::byte* stage, Sums& to) const {
    KVCACHE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const TileInputs x = Take(stage, tile);
      KVCACHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        KVCACHE_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          const Dots<kParts> dots = DotsOf<kParts>(starts_, w.fragments[p][i],
                                                   {x.values.at[2 * i], x.values.at[2 * i + 1]});
          KVCACHE_UNROLL
          for (int part = 0; part < kParts; ++part) {
            AddDots(dots, w.factors[p][i], part, x.scales[i * kParts + part],
                    x.sums[i * kParts + part], to.at[p][tile]);
          }
        }
      }
    }
  }
  // Multiplies 32 inputs, which are the first or the second of a pair.
  KVCACHE_DEVICE void MultiplyOne(const Operands<1>& w, const std::byte* stage, int second,
                                  Sums& to) const {
    KVCACHE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const TileInputs x = Take(stage, tile);
      const bool is_second = second == 1;
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const Dots<kParts> dots = DotsOf<kParts>(starts_, w.fragments[p][0],
                                                 {is_second ? x.values.at[2] : x.values.at[0],
                                                  is_second ? x.values.at[3] : x.values.at[1]});
        KVCACHE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          float scales[2];
          float sums[2];
          KVCACHE_UNROLL
          for (int column = 0; column < 2; ++column) {
            scales[column] = is_second ? x.scales[kParts + part][column] : x.scales[part][column];
            sums[column] = is_second ? x.sums[kParts + part][column] : x.sums[part][column];
          }
          AddDots(dots, w.factors[p][0], part, scales, sums, to.at[p][tile]);
        }
      }
    }
  }

  static KVCACHE_DEVICE void AddDots(const Dots<kParts>& dots, const Factors<kType>& w, int part,
                                     const float (&scales)[2], const float (&sums)[2],
                                     float (&to)[2][2]) {
    KVCACHE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int row = j / 2;
      const int column = j % 2;
      float& sum = to[row][column];
      if constexpr (kPer256) {
        sum = AddTo<kType>(sum, dots, w, part, row, column, sums[column]);
      } else {
        sum = Fma(ScaledOf<kType>(dots, w, part, row, column), scales[column], sum);
        if constexpr (HasMinima(kChain)) sum = Fma(w.minimum[part][row], sums[column], sum);
      }
    }
  }

  // Where this thread keeps its sums of a panel and tile.
  KVCACHE_DEVICE Words4* KeptSums(int index) const {
    return reinterpret_cast<Words4*>(shared_ + Memory::kKeptAt) + index * kManyThreads + Thread();
  }
  KVCACHE_DEVICE void TakeSums(int panel, int tile, Sums& y) const {
    const Words4 four = *KeptSums(panel * kTiles + tile);
    KVCACHE_UNROLL
    for (int j = 0; j < 4; ++j) y.at[panel][tile][j / 2][j % 2] = FloatOf(four.at[j]);
  }
  KVCACHE_DEVICE void KeepSums(int panel, int tile, const Sums& y) const {
    Words4 four;
    KVCACHE_UNROLL
    for (int j = 0; j < 4; ++j) four.at[j] = BitsOf(y.at[panel][tile][j / 2][j % 2]);
    *KeptSums(panel * kTiles + tile) = four;
  }

  // Adds a chunk's sums to y.
  KVCACHE_DEVICE void AddChunk(const std::byte* stage, const Sums& a, Sums& y) const {
    KVCACHE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const Words2 scales = FromShared::Load<Words2>(stage + Memory::kScalesAt +
                                                     (warp_tile_ + tile) * 32 + spot_.t * 8);
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        if constexpr (Memory::kKeepsSums) TakeSums(p, tile, y);
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) {
          float& to = y.at[p][tile][j / 2][j % 2];
          to = Fma(a.at[p][tile][j / 2][j % 2], FloatOf(scales.row[j % 2]), to);
        }
        if constexpr (Memory::kKeepsSums) KeepSums(p, tile, y);
      }
    }
  }

  KVCACHE_DEVICE void Store(Sums& y) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        if constexpr (Memory::kKeepsSums) TakeSums(p, tile, y);
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
  Starts starts_;
  int first_panel_;  // the warp's
  int first_tile_;   // the block's
  int warp_tile_;    // the warp's first in the block
  int blocks_;       // of 32 inputs
  int pairs_;
  std::byte* shared_;
  TileCopy<Memory::kTilesOfBlock, Memory::kValueBytes> values_;
  TileCopy<Memory::kTilesOfBlock, Memory::kScaleBytes> scales_;
  TileCopy<Memory::kTilesOfBlock, Memory::kSumBytes> sums_;
  TileCopy<Memory::kPanelsOfBlock, Memory::kPairBodyBytes> bodies_;
  TileCopy<Memory::kPanelsOfBlock, kPer256 ? Memory::kHeadBytes : Memory::kPairHeadBytes> heads_;
};

template <DType kType, ManyShape kShape>
KVCACHE_DEVICE void MultiplyMany(const LinearArgs& args) {
  using Memory = ManyMemory<kType, kShape>;
  // Kernels may have written a list in memory.
  if (args.tasks.all != nullptr) WaitForEarlier();
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int tiles =
      static_cast<int>((TilesOf(task.columns) + Memory::kTilesOfBlock - 1) / Memory::kTilesOfBlock);
  const int index = BlockX() - task.first_block;
  // Blocks that run at the same time share weights.
  ManyKernel<kType, kShape> kernel(task, index / tiles * Memory::kPanelsOfBlock,
                                   index % tiles * Memory::kTilesOfBlock,
                                   SharedMemory<SharedBytes16>().at);
  kernel.Begin();
  WaitForEarlier();
  kernel.Run();
}

}  // namespace kvcache::cuda::linear
