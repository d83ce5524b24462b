// Attention over latents of q8_0: keys that contain their value, whose blocks share a scale (cpu/common/kv_blocks.h).
// Codes have the layout of keys for scores and for weighted sums.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/keys-inl.h"
#include "backend/cuda/attention/merge-inl.h"
#include "backend/cuda/attention/queries-inl.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/attention/stages-inl.h"
#include "backend/cuda/attention/values_of_blocks-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_DEVICE int LatentHadamardSize(int v_dim) {
  return Smaller(v_dim & -v_dim, kMergeThreads * kMergeDims);
}

// --- Queries

// Rounds block `block` of a query; returns the lane's code.
template <class Shape>
KVCACHE_DEVICE std::int32_t CodeBlock(const float* x, const Unit& unit, int block, int row,
                                      const CodedQueries& to) {
  const float rounded =
      unit.inverse == 0.0f ? kIntegers : Add(Mul(x[block * 32 + Lane()], unit.inverse), kIntegers);
  const std::int32_t code = static_cast<std::int32_t>(BitsOf(rounded)) - kIntegerBits;
  to.codes[row * to.pitch + block * 32 + Lane()] = static_cast<std::int8_t>(code);
  return code;
}

// The value's part of a query has one unit and one start, as those of block 0; the start has no kIntegerBits.
template <class Shape>
KVCACHE_DEVICE void CodeLatentQueries(const AttendArgs& args,
                                      const AttendShared<Shape::kRows>& shared, float* transformed,
                                      const CodedQueries& to) {
  constexpr int kOffset = 128;
  const int v_dim = args.v_dim;
  const int rest = args.k_dim - v_dim;
  float* const x = transformed + Warp() * args.k_dim;
  KVCACHE_UNROLL_BY(1)
  for (int r = Warp(); r < Shape::kQueries; r += kAttendWarps) {
    const std::int32_t row = r < Shape::kRows ? shared.rows[r].query : -1;
    const float* const from = args.q + std::int64_t{row < 0 ? 0 : row} * args.k_dim;
    for (int d = Lane(); d < args.k_dim; d += 32) x[d] = row < 0 ? 0.0f : Mul(from[d], args.scale);
    WarpBarrier();
    Transform(x, v_dim, LatentHadamardSize(v_dim));
    if (rest > 0) Transform(x + v_dim, rest, rest & -rest);
    std::int32_t largest = 0;
    for (int d = Lane(); d < v_dim; d += 32) largest = Larger(largest, MagnitudeBits(x[d]));
    const Unit of_value = UnitOf(LargestOfWarp(largest), 127.0f);
    std::int32_t sum = 0;
    for (int b = 0; b < v_dim / 32; ++b) sum += CodeBlock<Shape>(x, of_value, b, r, to);
    sum = SumOfWarp(sum);
    if (Lane() == 0) {
      to.units[r] = of_value.unit;
      to.starts[r] = -kOffset * sum;
    }
    for (int b = v_dim / 32; b < args.k_dim / 32; ++b) {
      const Unit unit = UnitOf(LargestOfWarp(MagnitudeBits(x[b * 32 + Lane()])), 127.0f);
      const std::int32_t of_block = SumOfWarp(CodeBlock<Shape>(x, unit, b, r, to));
      if (Lane() == 0) {
        to.units[b * Shape::kQueries + r] = unit.unit;
        to.starts[b * Shape::kQueries + r] = kIntegerBits - kOffset * of_block;
      }
    }
    WarpBarrier();
  }
}

// --- Scores: s = (float(Σ_b dot_b) · k's scale) · q's unit over the value's blocks, then the rest as for other keys

// A warp's sums: some slots × groups of eight queries. Integers until the value's last block, then the bits of floats.
template <class Shape>
struct LatentScores {
  std::int32_t sums[Shape::kWarpSlots][Shape::kGroups][4];
};

// The scales of keys 2g and 2g + 1 of a slot's block.
KVCACHE_DEVICE void LoadScales(const std::uint8_t* at, float (&scales)[2]) {
  const std::uint32_t both = LoadWord(at);
  scales[0] = StoredF16::Low(both);
  scales[1] = StoredF16::High(both);
}

// Turns the sums of integers into scores.
KVCACHE_DEVICE void ScaleSums(const float (&scales)[2], const float (&units)[2],
                              std::int32_t (&sums)[4]) {
  KVCACHE_UNROLL
  for (int k = 0; k < 4; ++k) {
    const float scaled = Mul(static_cast<float>(sums[k]), scales[k / 2]);
    sums[k] = static_cast<std::int32_t>(BitsOf(Mul(scaled, units[k % 2])));
  }
}

// Adds one block of the rest.
KVCACHE_DEVICE void AddRest(const std::uint32_t (&a)[4], const std::uint32_t (&column)[2],
                            const std::int32_t (&start)[4], const float (&scales)[2],
                            const float (&units)[2], std::int32_t (&sums)[4]) {
  std::int32_t dots[4];
  MmaU8S8(dots, a, column, start);
  KVCACHE_UNROLL
  for (int k = 0; k < 4; ++k) {
    const float scale = scales[k / 2];
    const float scaled =
        Fma(FloatOf(static_cast<std::uint32_t>(dots[k])), scale, Mul(-kIntegers, scale));
    const float sum = Fma(scaled, units[k % 2], FloatOf(static_cast<std::uint32_t>(sums[k])));
    sums[k] = static_cast<std::int32_t>(BitsOf(sum));
  }
}

// A warp's slots in the memory of a stage.
template <class Shape>
struct LatentStage {
  const std::uint8_t* codes;   // the lane's, of the first slot and block
  const std::uint8_t* scales;  // the same
  int stride;                  // from a slot of the warp to its next
  int slots;                   // of the warp

  KVCACHE_DEVICE LatentStage(const std::uint8_t* memory, int step, int of_split) {
    const int first = Warp() / Shape::kGroupSets;
    const int slot_bytes = step * (512 + kScaleBytes);
    const std::uint8_t* const slot = memory + first * slot_bytes;
    codes = slot + Lane() % 4 * 64 + Lane() / 4 * 8;
    scales = slot + step * 512 + Lane() / 4 * 4;
    stride = Shape::kSlotStep * slot_bytes;
    slots = (of_split - first + Shape::kSlotStep - 1) / Shape::kSlotStep;
  }
};

// Adds blocks [begin, end) of a stage, all of the value. kAll: no slot is missing.
template <class Shape, bool kAll>
KVCACHE_DEVICE void ScoreValueBlocks(const LatentStage<Shape>& stage, QueryBlocks<Shape>& query,
                                     int begin, int end, LatentScores<Shape>& scores) {
  KVCACHE_UNROLL_BY(1)
  for (int b = begin; b < end; ++b) {
    std::uint32_t columns[Shape::kGroups][2];
    KVCACHE_UNROLL
    for (int j = 0; j < Shape::kGroups; ++j) query.LoadCodes(j, columns[j]);
    query.Advance();
    const std::uint8_t* const codes = stage.codes + b * 512;
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kWarpSlots; ++i) {
      if (!kAll && i >= stage.slots) continue;
      std::uint32_t a[4];
      LoadKeyCodes<true>(codes + i * stage.stride, a);
      KVCACHE_UNROLL
      for (int j = 0; j < Shape::kGroups; ++j) MmaU8S8(scores.sums[i][j], a, columns[j]);
    }
  }
}

// Makes scores of the value's sums; its last block is number b of the stage.
template <class Shape>
KVCACHE_DEVICE void ScaleValues(const LatentStage<Shape>& stage, const CodedQueries& queries,
                                int first_group, int b, LatentScores<Shape>& scores) {
  const QueryBlocks<Shape> query(queries, first_group, 0);
  KVCACHE_UNROLL
  for (int j = 0; j < Shape::kGroups; ++j) {
    std::uint32_t column[2];
    std::int32_t start[4];
    float units[2];
    query.Load(j, column, start, units);
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kWarpSlots; ++i) {
      if (i >= stage.slots) continue;
      float scales[2];
      LoadScales(stage.scales + b * kScaleBytes + i * stage.stride, scales);
      ScaleSums(scales, units, scores.sums[i][j]);
    }
  }
}

// Adds blocks [begin, end) of a stage, none of the value.
template <class Shape>
KVCACHE_DEVICE void ScoreRestBlocks(const LatentStage<Shape>& stage, QueryBlocks<Shape>& query,
                                    int begin, int end, LatentScores<Shape>& scores) {
  KVCACHE_UNROLL_BY(1)
  for (int b = begin; b < end; ++b) {
    std::uint32_t columns[Shape::kGroups][2];
    std::int32_t starts[Shape::kGroups][4];
    float units[Shape::kGroups][2];
    KVCACHE_UNROLL
    for (int j = 0; j < Shape::kGroups; ++j) query.Load(j, columns[j], starts[j], units[j]);
    query.Advance();
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kWarpSlots; ++i) {
      if (i >= stage.slots) continue;
      std::uint32_t a[4];
      LoadKeyCodes<true>(stage.codes + b * 512 + i * stage.stride, a);
      float scales[2];
      LoadScales(stage.scales + b * kScaleBytes + i * stage.stride, scales);
      KVCACHE_UNROLL
      for (int j = 0; j < Shape::kGroups; ++j) {
        AddRest(a, columns[j], starts[j], scales, units[j], scores.sums[i][j]);
      }
    }
  }
}

// Adds `count` blocks of a stage, which are the blocks from `first` on; the first `latent` blocks are the value's.
template <class Shape>
KVCACHE_DEVICE void ScoreLatentBlocks(const std::uint8_t* memory, const CodedQueries& queries,
                                      int slots, int step, int first, int count, int latent,
                                      LatentScores<Shape>& scores) {
  const int first_group = Warp() % Shape::kGroupSets * Shape::kGroups;
  const LatentStage<Shape> stage(memory, step, slots);
  QueryBlocks<Shape> query(queries, first_group, first);
  const int values = Smaller(Larger(latent - first, 0), count);
  if (slots == Shape::kMaxSlots) {
    ScoreValueBlocks<Shape, true>(stage, query, 0, values, scores);
  } else {
    ScoreValueBlocks<Shape, false>(stage, query, 0, values, scores);
  }
  if (values > 0 && first + values == latent) {
    ScaleValues<Shape>(stage, queries, first_group, values - 1, scores);
  }
  ScoreRestBlocks<Shape>(stage, query, values, count, scores);
}

template <class Shape, class AllStages>
KVCACHE_DEVICE void ScoreLatents(const AttendArgs& args, const SplitInfo& info, AllStages& stages,
                                 const CodedQueries& queries, AttendShared<Shape::kRows>& shared) {
  const int first_column = Warp() % Shape::kGroupSets * Shape::kGroups * 8 + Lane() % 4 * 2;
  LatentScores<Shape> scores;
  KVCACHE_UNROLL
  for (int j = 0; j < Shape::kGroups; ++j) {
    std::uint32_t starts[2];
    LoadWords(queries.starts + first_column + j * 8, starts);
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kWarpSlots; ++i) {
      KVCACHE_UNROLL
      for (int k = 0; k < 4; ++k) scores.sums[i][j][k] = static_cast<std::int32_t>(starts[k % 2]);
    }
  }
  const int step = info.key_step;
  const int slots = info.slots;
  const int stage_count = info.key_stages;
  KVCACHE_UNROLL_BY(1)
  for (int stage = 0; stage < stage_count; ++stage) {
    const std::uint8_t* const memory = stages.Next();
    const int first = stage * step;
    const int count = Smaller(step, args.k_dim / 32 - first);
    ScoreLatentBlocks<Shape>(memory, queries, slots, step, first, count, args.v_dim / 32, scores);
  }
  KVCACHE_UNROLL
  for (int i = 0; i < Shape::kWarpSlots; ++i) {
    const int slot = Warp() / Shape::kGroupSets + i * Shape::kSlotStep;
    if (slot >= slots) continue;
    KVCACHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const std::int32_t position = PositionIn(info, slot, Lane() / 4 * 2 + k / 2);
      if (position < 0) continue;
      KVCACHE_UNROLL
      for (int j = 0; j < Shape::kGroups; ++j) {
        const int row = first_column + j * 8 + k % 2;
        if (row < Shape::kRows) {
          shared.scores[row][position] = FloatOf(static_cast<std::uint32_t>(scores.sums[i][j][k]));
        }
      }
    }
  }
}

// --- Weighted sums: the weights' integers are made once for all blocks

// Words of four values of each of four cells become words of four cells: bytes `pick` (0x40 + 0x11 × the byte) of each.
KVCACHE_DEVICE std::uint32_t PickBytes(const std::uint32_t (&words)[4], std::uint32_t pick) {
  return BytePermute(BytePermute(words[0], words[1], pick), BytePermute(words[2], words[3], pick),
                     0x5410);
}

// What a warp adds for half a block: the lane's words of codes and digits.
template <class Shape>
struct LatentHalf {
  const std::uint8_t* codes;   // values 4g … of cells 4t … of the first slot
  const std::uint8_t* digits;  // of column g and cells 4t … of the first slot
  std::uint32_t pick;          // value 4g + 2 half
  std::int32_t sums[Shape::kQuadsAtOnce][4];

  // Values 4g + 2 half and the next, for the lane's cells of a slot: rows g and g + 8 of a product.
  KVCACHE_DEVICE void LoadCells(const std::uint8_t* at, std::uint32_t& low,
                                std::uint32_t& high) const {
    std::uint32_t cells[4];
    LoadWords(at, cells);
    low = PickBytes(cells, pick);
    high = PickBytes(cells, pick + 0x11);
  }

  // Adds one slot, or two, which are slot_bytes apart, and leaves them.
  template <bool kTwo>
  KVCACHE_DEVICE void Add(int slot_bytes) {
    std::uint32_t a[4] = {0, 0, 0, 0};
    LoadCells(codes, a[0], a[1]);
    if constexpr (kTwo) LoadCells(codes + slot_bytes, a[2], a[3]);
    KVCACHE_UNROLL
    for (int q = 0; q < Shape::kQuadsAtOnce; ++q) {
      const std::uint8_t* const at = digits + q * 8 * Shape::kDigitPitch;
      const std::uint32_t b[2] = {LoadWord(at), kTwo ? LoadWord(at + kAttendTile) : 0};
      MmaU8S8(sums[q], a, b);
    }
    codes += 2 * slot_bytes;
    digits += 2 * kAttendTile;
  }
};

// Sums two values of each lane for some groups of four rows, by a warp. `codes` are those of the first slot's block,
// `dim` is the block's first dim.
template <class Shape>
KVCACHE_DEVICE void SumLatentHalf(const WeightDigits<Shape>& weights,
                                  const AttendShared<Shape::kRows>& shared,
                                  const std::uint8_t* codes, int slot_bytes, int slots, int half,
                                  int first_quad, int dim, const Results& results) {
  constexpr int kQuads = Shape::kQuadsAtOnce;
  const int g = Lane() / 4;
  const int t = Lane() % 4;
  LatentHalf<Shape> of;
  of.codes = codes + g * 64 + t * 16;
  of.digits = &weights.digits[0][first_quad * 8 + g][t * 4];
  of.pick = 0x40u + 0x22u * static_cast<std::uint32_t>(half);
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) of.sums[q][i] = 0;
  }
  KVCACHE_UNROLL_BY(2)
  for (int slot = 0; slot + 1 < slots; slot += 2) of.template Add<true>(slot_bytes);
  if (slots % 2 != 0) of.template Add<false>(slot_bytes);
  float* const first = results.first + dim + 4 * g + 2 * half;
  float before[kQuads][2];
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const int row = (first_quad + q) * 4 + t;
    const Deposit deposit(shared, results.merge, row);
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      before[q][i] =
          row < results.rows ? deposit.Before(first + row * results.row_floats + i) : 0.0f;
    }
  }
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const int row = (first_quad + q) * 4 + t;
    if (row >= results.rows) continue;
    const Deposit deposit(shared, results.merge, row);
    const auto correction = static_cast<std::uint32_t>(weights.corrections[0][row]);
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t total = static_cast<std::uint32_t>(of.sums[q][2 * i]) +
                                  (static_cast<std::uint32_t>(of.sums[q][2 * i + 1]) << 8) +
                                  correction;
      const float sum =
          Mul(static_cast<float>(static_cast<std::int32_t>(total)), weights.units[0][row]);
      deposit.Store(before[q][i], sum, first + row * results.row_floats + i);
    }
  }
}

template <class Shape, class AllStages>
KVCACHE_DEVICE void SumLatents(const AttendArgs& args, const SplitInfo& info, AllStages& stages,
                               const AttendShared<Shape::kRows>& shared,
                               WeightDigits<Shape>& weights, const Results& results) {
  constexpr int kCodes = 512;
  const int step = info.value_step;
  const int slot_bytes = step * (kCodes + kScaleBytes);
  const int stage_count = info.value_stages;
  KVCACHE_UNROLL_BY(1)
  for (int stage = 0; stage < stage_count; ++stage) {
    const std::uint8_t* const memory = stages.Next();
    const int first = stage * step;
    const int count = Smaller(step, args.v_dim / 32 - first);
    if (stage == 0) {
      const bool fit = SlotsFit(info);
      KVCACHE_UNROLL_BY(1)
      for (int row = Warp(); row < Shape::kRows; row += kAttendWarps) {
        WeighBlock<Shape>(info, fit, memory + step * kCodes, slot_bytes, 128, shared.scores[row],
                          row, 0, weights);
      }
      BlockBarrier();
    }
    KVCACHE_UNROLL_BY(1)
    for (int i = Warp(); i < count * 2 * Shape::kQuadSets; i += kAttendWarps) {
      const int half = i % 2;
      const int set = i / 2 % Shape::kQuadSets;
      const int block = i / 2 / Shape::kQuadSets;
      SumLatentHalf<Shape>(weights, shared, memory + block * kCodes, slot_bytes, info.slots, half,
                           set * Shape::kQuadsAtOnce, (first + block) * 32, results);
    }
  }
}

// --- A task

template <int R>
KVCACHE_DEVICE void AttendLatents(const AttendArgs& args) {
  using Shape = LatentShape<R>;
  AttendShared<R>& shared = SharedMemory<AttendShared<R>>();
  auto* const parts = reinterpret_cast<std::uint8_t*>(&shared + 1);
  const AttendLayout& layout = args.layout;
  if (Thread() == 0) shared.task = args.tasks[BlockX()];
  BlockBarrier();
  const AttendTask& task = shared.task;
  Stages<Shape, true, true, true> stages(args, task, shared.infos, parts + layout.stages);
  ListRows<Shape>(args, task, shared);
  BlockBarrier();
  const CodedQueries queries{reinterpret_cast<std::int8_t*>(parts + layout.query),
                             reinterpret_cast<float*>(parts + layout.units),
                             reinterpret_cast<std::int32_t*>(parts + layout.starts),
                             layout.code_pitch};
  CodeLatentQueries<Shape>(args, shared, reinterpret_cast<float*>(parts + layout.transformed),
                           queries);
  BlockBarrier();
  auto& digits = *reinterpret_cast<WeightDigits<Shape>*>(parts + layout.digits);
  KVCACHE_UNROLL_BY(1)
  for (int i = 0; i < task.splits; ++i) {
    const SplitInfo& info = stages.Info(i);
    ScoreLatents<Shape>(args, info, stages, queries, shared);
    BlockBarrier();
    const Results results{args.partials + task.partials + i * task.distance, args.partial_floats,
                          task.rows, task.distance == 0};
    WeighRows<Shape>(args, task, info, args.splits[task.first_split + i],
                     results.merge ? nullptr : results.first, shared);
    SumLatents<Shape>(args, info, stages, shared, digits, results);
  }
  AsyncWait<0>();
  if (task.distance != 0) return;
  BlockBarrier();
  const int r = Thread();
  if (r >= task.rows) return;
  float* const last = args.partials + task.partials + (r + 1) * args.partial_floats - kAttendTile;
  last[0] = shared.max[r];
  last[1] = shared.sum[r];
}

// --- The merge: a row's result is transformed back

KVCACHE_DEVICE void MergeLatents(const MergeArgs& args) {
  MergeLatentShared& shared = SharedMemory<MergeLatentShared>();
  const MergeToken token = args.tokens[BlockX()];
  const int head = BlockY();
  const int first = BlockZ() * kMergeThreads * kMergeDims;
  const FinishedValues<kMergeDims> finished =
      MergeRow<kMergeDims>(args, token, head, first + Thread(), shared.merge);
  KVCACHE_UNROLL
  for (int k = 0; k < kMergeDims; ++k) {
    shared.row[Thread() + k * kMergeThreads] = finished.values[k];
  }
  BlockBarrier();
  const int count = Smaller(args.v_dim - first, kMergeThreads * kMergeDims);
  const int size = LatentHadamardSize(args.v_dim);
  KVCACHE_UNROLL_BY(1)
  for (int half = 1; half < size; half *= 2) {
    for (int i = Thread(); i < count / 2; i += kMergeThreads) {
      const int at = (i & ~(half - 1)) * 2 + (i & (half - 1));
      const float a = shared.row[at];
      const float b = shared.row[at + half];
      shared.row[at] = Add(a, b);
      shared.row[at + half] = Sub(a, b);
    }
    BlockBarrier();
  }
  const float factor = InverseRoot(size);
  float* const out = OutOf(args, token, head) + first;
  for (int d = Thread(); d < count; d += kMergeThreads) out[d] = Mul(shared.row[d], factor);
}

}  // namespace kvcache::cuda
