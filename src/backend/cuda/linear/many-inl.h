// Products with many columns, for one type of weights: bound by arithmetic.
//
// A block takes a tile of panels and columns (many_memory.h). Its threads copy the inputs to shared memory,
// a pair of 32 at a time, three pairs ahead. Each warp reads its own panels from global memory ahead, in
// registers, and makes fragments of them once for all of its columns. All chains are in registers. The four
// pairs of a chunk are written out, so that all places in memory are constants.
#pragma once

#include "backend/cuda/linear/block_sums-inl.h"
#include "backend/cuda/linear/many_memory.h"
#include "backend/cuda/linear/task-inl.h"

namespace kvcache::cuda::linear {

// Copies kBytes of each of kTiles tiles to shared memory, 16 by 16, pair by pair.
template <int kTiles, int kBytes>
class TileCopy {
 public:
  // `stride`: bytes from tile to tile. Tiles behind the last one are copies of it; their products are not
  // stored.
  KVCACHE_DEVICE TileCopy(const void* array, std::int64_t stride, int first_tile, int last_tile) {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int unit = i * kManyThreads + Thread();
      const int wanted = first_tile + unit / kUnits;
      const int tile = wanted < last_tile ? wanted : last_tile;
      from_[i] = static_cast<const std::byte*>(array) + tile * stride + unit % kUnits * 16;
    }
  }

  // Starts the copies of what is `offset` bytes behind the tiles' first bytes.
  KVCACHE_DEVICE void Start(std::byte* to, int offset) const {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int unit = i * kManyThreads + Thread();
      if (kAll % kManyThreads != 0 && unit >= kAll) break;
      AsyncCopy16(to + unit * 16, from_[i] + offset);
    }
  }

  KVCACHE_DEVICE void Advance(int bytes) {
    KVCACHE_UNROLL
    for (int i = 0; i < kSteps; ++i) from_[i] += bytes;
  }

 private:
  static constexpr int kUnits = kBytes / 16;  // of a tile
  static constexpr int kAll = kTiles * kUnits;
  static constexpr int kSteps = (kAll + kManyThreads - 1) / kManyThreads;
  const std::byte* from_[kSteps];
};

template <int kTiles>
class TileCopy<kTiles, 0> {
 public:
  KVCACHE_DEVICE TileCopy(const void*, std::int64_t, int, int) {}
  KVCACHE_DEVICE void Start(std::byte*, int) const {}
  KVCACHE_DEVICE void Advance(int) {}
};

template <DType kType, ManyShape kShape>
class ManyKernel {
 public:
  KVCACHE_DEVICE ManyKernel(const LinearTask& task, int first_panel, int first_tile,
                            std::byte* shared)
      : ManyKernel(task, first_panel, first_tile, static_cast<int>(TilesOf(task.columns)) - 1,
                   PairsOf(task.inputs), shared) {}

  KVCACHE_DEVICE void Run() {
    KVCACHE_UNROLL
    for (int i = 0; i + 1 < kPairs; ++i) Copy(i, i < pairs_);
    Sums y = {};
    const int chunks = blocks_ / 8;
    if (chunks > 0) RunChunks(chunks, y);
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
  static_assert(Memory::kStages == kPairs && kPairs % kShape.ahead == 0);

  // [panel][tile][row][column]
  struct Sums {
    float at[kPanels][kTiles][2][2];
  };

  // What a lane holds of a pair of its panels.
  struct Held {
    InnerHead<kType> inner[kPanels][2];  // if scales are not shared
    Lines<kType> lines[kPanels][2];
  };
  // What it holds of a chunk.
  struct Heads {
    OuterHead outer[kPanels];
    InnerHead<kType> inner[kPanels][2];  // of pair t, if scales are shared
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
              last_tile) {
    const auto last = static_cast<int>(block::Panels(task.outputs)) - 1;
    const std::int64_t bytes = block::PanelBytes(kType, task.inputs);
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const int panel = first_panel_ + p < last ? first_panel_ + p : last;
      panels_[p] = task.weights + panel * bytes;
    }
  }

  // Starts to copy pair `pair` of the chunk where the copies stand, if it is there, to its stage, and closes
  // the group of copies.
  KVCACHE_DEVICE void Copy(int pair, bool is_there) {
    if (is_there) {
      std::byte* const to = shared_ + pair * Memory::kStageBytes;
      values_.Start(to, pair * Memory::kValueBytes);
      if constexpr (!kPer256) {
        scales_.Start(to + Memory::kScalesAt, pair * Memory::kScaleBytes);
      } else if (pair == kPairs - 1) {
        scales_.Start(to + Memory::kScalesAt, 0);
      }
      sums_.Start(to + Memory::kSumsAt, pair * Memory::kSumBytes);
    }
    AsyncCommit();
  }
  // Moves the copies to the next chunk.
  KVCACHE_DEVICE void AdvanceCopies() {
    values_.Advance(kPairs * Memory::kValueBytes);
    scales_.Advance(kPer256 ? Memory::kScaleBytes : kPairs * Memory::kScaleBytes);
    sums_.Advance(kPairs * Memory::kSumBytes);
  }

  // Waits for the pair of stage `stage`, and starts the copy of the one three pairs later, whose stage all
  // threads have read. `left`: pairs from this one on.
  KVCACHE_DEVICE void NextStage(int stage, int left) {
    AsyncWait<kPairs - 2>();
    BlockBarrier();
    if (stage == 1) AdvanceCopies();
    Copy((stage + kPairs - 1) % kPairs, left > kPairs - 1);
  }

  // Loads a pair of the warp's panels, `offset` bytes behind the chunk where panels_ stands, of a whole chunk.
  KVCACHE_DEVICE void Load(int offset, int pair, Held& held) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* const at = panels_[p] + offset;
      KVCACHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int b = 2 * pair + i;
        if constexpr (!kSharesScales) held.inner[p][i] = LoadInner<kType, FromGlobal>(at, b, spot_);
        held.lines[p][i] = LoadLines<kType, FromGlobal>(at + kHeadBytes + b * kBodyBytes, spot_);
      }
    }
  }
  KVCACHE_DEVICE void LoadHeads(int offset, Heads& heads) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* const at = panels_[p] + offset;
      heads.outer[p] = LoadOuter<kType, FromGlobal>(at, spot_);
      if constexpr (kSharesScales) {
        heads.inner[p][0] = LoadInner<kType, FromGlobal>(at, 2 * spot_.t, spot_);
        heads.inner[p][1] = LoadInner<kType, FromGlobal>(at, 2 * spot_.t + 1, spot_);
      }
    }
  }

  // Where the lane's rows have their shared scales of the 32 inputs `b`.
  KVCACHE_DEVICE Words2* SharedScales(int panel, int b) const {
    return reinterpret_cast<Words2*>(shared_ + Memory::kFactorsAt) +
           (Warp() * Memory::kWarpFloats +
            ((panel * 8 + b) * 8 + spot_.g) * Memory::kSharedFloats) /
               2;
  }

  // Computes the scales of pair t of a chunk for all lanes of the rows.
  KVCACHE_DEVICE void ShareScales(const Heads& heads) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int b = 2 * spot_.t + i;
        const RowScales<kType> scales = MakeScales<kType>(heads.outer[p], heads.inner[p][i], b);
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

  KVCACHE_DEVICE RowScales<kType> TakeScales(int panel, int b) const {
    const Words2* const from = SharedScales(panel, b);
    RowScales<kType> scales{};
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      KVCACHE_UNROLL
      for (int row = 0; row < 2; ++row) {
        scales.scale[part][row] = FloatOf(from[part].row[row]);
        if constexpr (HasMinima(kChain)) {
          scales.minimum[part][row] = FloatOf(from[kParts + part].row[row]);
        }
      }
    }
    return scales;
  }

  // All whole chunks.
  KVCACHE_DEVICE void RunChunks(int chunks, Sums& y) {
    Held held[kShape.ahead];
    Heads heads;
    LoadHeads(0, heads);
    KVCACHE_UNROLL
    for (int i = 0; i < kShape.ahead; ++i) Load(0, i, held[i]);
    KVCACHE_UNROLL_BY(1)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const bool has_next = chunk + 1 < chunks;
      const Heads now = heads;
      Sums a = {};
      KVCACHE_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        NextStage(pair, pairs_ - chunk * kPairs - pair);
        if (pair == 0) {
          // All lanes have used those of the chunk before.
          if constexpr (kSharesScales) ShareScales(now);
          if (has_next) LoadHeads(kChunkBytes, heads);
        }
        Operands<2> w;
        MakeOperands(now, held[pair % kShape.ahead], 2 * pair, w);
        const int next = pair + kShape.ahead;
        if (next < kPairs) {
          Load(0, next, held[pair % kShape.ahead]);
        } else if (has_next) {
          Load(kChunkBytes, next % kPairs, held[pair % kShape.ahead]);
        }
        Multiply(w, shared_ + pair * Memory::kStageBytes, kPer256 ? a : y);
      }
      if constexpr (kPer256) AddChunk(shared_ + 3 * Memory::kStageBytes, a, y);
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) panels_[p] += kChunkBytes;
    }
  }

  // The last inputs, which do not fill a chunk; panels_ stands there.
  KVCACHE_DEVICE void RunRest(int chunks, Sums& y) {
    const int blocks = blocks_ - chunks * 8;
    const auto head_bytes = static_cast<int>(block::HeadBytes(kType, blocks));
    KVCACHE_UNROLL_BY(1)
    for (int b = 0; b < blocks; ++b) {
      const int pair = b / 2;
      if (b % 2 == 0) NextStage(pair, pairs_ - chunks * kPairs - pair);
      const std::byte* const stage = shared_ + pair * Memory::kStageBytes;
      Held held;
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        held.inner[p][0] = LoadInner<kType, FromGlobal>(panels_[p], b, spot_);
        held.lines[p][0] =
            LoadLines<kType, FromGlobal>(panels_[p] + head_bytes + b * kBodyBytes, spot_);
      }
      Operands<1> w;
      MakeOperands(Heads{}, held, b, w);
      MultiplyOne(w, stage, b % 2, y);
    }
  }

  // The fragments and factors of kBlocks × 32 inputs.
  template <int kBlocks>
  struct Operands {
    std::uint32_t fragments[kPanels][kBlocks][4];
    Factors<kType> factors[kPanels][kBlocks];
  };

  // `b`: which 32 inputs of the chunk are the first.
  template <int kBlocks>
  KVCACHE_DEVICE void MakeOperands(const Heads& heads, const Held& held, int b,
                                   Operands<kBlocks>& to) const {
    KVCACHE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      KVCACHE_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        MakeFragment<kType>(held.lines[p][i], spot_, to.fragments[p][i]);
        if constexpr (kSharesScales) {
          to.factors[p][i] = Factors<kType>(TakeScales(p, b + i));
        } else {
          to.factors[p][i] =
              Factors<kType>(MakeScales<kType>(heads.outer[p], held.inner[p][i], b + i));
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

  // Adds a chunk's sums to y.
  KVCACHE_DEVICE void AddChunk(const std::byte* stage, const Sums& a, Sums& y) const {
    KVCACHE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const Words2 scales = FromShared::Load<Words2>(stage + Memory::kScalesAt +
                                                     (warp_tile_ + tile) * 32 + spot_.t * 8);
      KVCACHE_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) {
          float& to = y.at[p][tile][j / 2][j % 2];
          to = Fma(a.at[p][tile][j / 2][j % 2], FloatOf(scales.row[j % 2]), to);
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
  Starts starts_;
  int first_panel_;  // the warp's
  int first_tile_;   // the block's
  int warp_tile_;    // the warp's first in the block
  int blocks_;       // of 32 inputs
  int pairs_;
  std::byte* shared_;
  const std::byte* panels_[kPanels];  // at the chunk that is multiplied
  TileCopy<Memory::kTilesOfBlock, Memory::kValueBytes> values_;
  TileCopy<Memory::kTilesOfBlock, Memory::kScaleBytes> scales_;
  TileCopy<Memory::kTilesOfBlock, Memory::kSumBytes> sums_;
};

template <DType kType, ManyShape kShape>
KVCACHE_DEVICE void MultiplyMany(const LinearArgs& args) {
  using Memory = ManyMemory<kType, kShape>;
  const LinearTask task = TaskOfBlock(args.tasks);
  if (task.columns == 0) return;
  const int tiles =
      static_cast<int>((TilesOf(task.columns) + Memory::kTilesOfBlock - 1) / Memory::kTilesOfBlock);
  const int index = BlockX() - task.first_block;
  // Blocks that run at the same time share weights.
  ManyKernel<kType, kShape>(task, index / tiles * Memory::kPanelsOfBlock,
                            index % tiles * Memory::kTilesOfBlock, SharedMemory<SharedBytes16>().at)
      .Run();
}

}  // namespace kvcache::cuda::linear
