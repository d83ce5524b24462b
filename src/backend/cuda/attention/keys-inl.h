// Scores of a task's rows against the keys of a split: scores[row][position], before soft-cap and bias. A
// score is one chain; what positions that are not retained get is not written.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/queries-inl.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/split-inl.h"
#include "backend/cuda/attention/stages-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// --- Float keys: s = Σ_d q_d k_d, ascending d

// A thread's scores: neighbouring keys of a slot × rows.
template <class Shape>
struct KeyScores {
  float sums[Shape::kKeys][Shape::kKeyRows];
};

// Adds `count` dims, from query[0] and the first thread's key at `at` on.
template <class Shape, class T>
KVCACHE_DEVICE void ScoreDims(const std::uint8_t* at, const float* query, int count,
                              KeyScores<Shape>& scores) {
  KVCACHE_UNROLL_BY(4)
  for (int d = 0; d < count; ++d, at += kAttendTile * T::kBytes, query += Shape::kRows) {
    float keys[Shape::kKeys];
    LoadWide<T>(at, keys);
    KVCACHE_UNROLL
    for (int first = 0; first < Shape::kKeyRows; first += 4) {
      float four[4];
      LoadFloats(query + first, four);
      KVCACHE_UNROLL
      for (int r = 0; r < 4; ++r) {
        KVCACHE_UNROLL
        for (int k = 0; k < Shape::kKeys; ++k) {
          scores.sums[k][first + r] = Fma(four[r], keys[k], scores.sums[k][first + r]);
        }
      }
    }
  }
}

template <class Shape, class AllStages>
KVCACHE_DEVICE void ScoreFloatKeys(const AttendArgs& args, const SplitInfo& info, AllStages& stages,
                                   const float* query, AttendShared<Shape::kRows>& shared) {
  constexpr int kKeys = Shape::kKeys;
  const int item = Thread() % Shape::kKeyThreads;
  const int row = Thread() / Shape::kKeyThreads * Shape::kKeyRows;
  const int slot = item / (kAttendTile / kKeys);
  const int lane = item % (kAttendTile / kKeys) * kKeys;
  KeyScores<Shape> scores;
  KVCACHE_UNROLL
  for (int k = 0; k < kKeys; ++k) {
    KVCACHE_UNROLL
    for (int r = 0; r < Shape::kKeyRows; ++r) scores.sums[k][r] = 0.0f;
  }
  const bool used = slot < info.slots;
  const int step = info.key_step;
  const int stage_count = info.key_stages;
  const int offset = slot * SlotBytes(args.k_type, step) + lane * ValueBytes(args.k_type);
  KVCACHE_UNROLL_BY(1)
  for (int stage = 0; stage < stage_count; ++stage) {
    const std::uint8_t* const at = stages.Next() + offset;
    if (!used) continue;
    const int first = stage * step;
    const int count = Smaller(step, args.k_dim - first);
    const float* const q = query + first * Shape::kRows + row;
    if (args.k_type == KvType::kF16) {
      ScoreDims<Shape, StoredF16>(at, q, count, scores);
    } else if (args.k_type == KvType::kBF16) {
      ScoreDims<Shape, StoredBF16>(at, q, count, scores);
    } else {
      ScoreDims<Shape, StoredF32>(at, q, count, scores);
    }
  }
  if (!used) return;
  KVCACHE_UNROLL
  for (int k = 0; k < kKeys; ++k) {
    const std::int32_t position = PositionIn(info, slot, lane + k);
    if (position < 0) continue;
    KVCACHE_UNROLL
    for (int r = 0; r < Shape::kKeyRows; ++r) {
      shared.scores[row + r][position] = scores.sums[k][r];
    }
  }
}

// --- Keys of block types: s = Σ_b scaled(dot_b, k's unit) · q's unit, ascending block b

// One block's products: sixteen keys × eight queries.
KVCACHE_DEVICE void AddBlock(const std::int32_t (&dots)[4], const float (&scales)[2],
                             const float (&offsets)[2], const float (&units)[2], float (&sums)[4]) {
  KVCACHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float scaled =
        Fma(FloatOf(static_cast<std::uint32_t>(dots[i])), scales[i / 2], offsets[i / 2]);
    sums[i] = Fma(scaled, units[i % 2], sums[i]);
  }
}

// The codes of keys 2g and 2g + 1 of a slot, as rows g and g + 8 of a product. `codes` are the lane's, whose
// values 4t … begin there.
template <bool kBytes>
KVCACHE_DEVICE void LoadKeyCodes(const std::uint8_t* codes, std::uint32_t (&a)[4]) {
  std::uint32_t low[2];
  LoadWords(codes, low);
  if constexpr (kBytes) {
    std::uint32_t high[2];
    LoadWords(codes + 256, high);
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      a[i] = low[i];
      a[2 + i] = high[i];
    }
  } else {
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      a[i] = low[i] & 0x0f0f0f0fu;
      a[2 + i] = low[i] >> 4 & 0x0f0f0f0fu;
    }
  }
}

// A warp's scores: some slots × groups of eight queries.
template <class Shape>
struct BlockScores {
  float sums[Shape::kWarpSlots][Shape::kGroups][4];
};

// A lane's parts of a warp's queries, one block after another.
template <class Shape>
struct QueryBlocks {
  const std::int8_t* codes;  // of the lane's column
  const std::int32_t* starts;
  const float* units;
  std::int32_t pitch;

  KVCACHE_DEVICE QueryBlocks(const CodedQueries& queries, int first_group, int block)
      : codes(queries.codes + (first_group * 8 + Lane() / 4) * queries.pitch + block * 32 +
              Lane() % 4 * 4),
        starts(queries.starts + block * Shape::kQueries + first_group * 8 + Lane() % 4 * 2),
        units(queries.units + block * Shape::kQueries + first_group * 8 + Lane() % 4 * 2),
        pitch(queries.pitch) {}

  KVCACHE_DEVICE void LoadCodes(int j, std::uint32_t (&b)[2]) const {
    const std::int8_t* const at = codes + j * 8 * pitch;
    b[0] = LoadWord(at);
    b[1] = LoadWord(at + 16);
  }

  // Loads one block of group j and leaves the place.
  KVCACHE_DEVICE void Load(int j, std::uint32_t (&b)[2], std::int32_t (&start)[4],
                           float (&unit)[2]) const {
    LoadCodes(j, b);
    std::uint32_t words[2];
    LoadWords(starts + j * 8, words);
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) start[i] = static_cast<std::int32_t>(words[i % 2]);
    LoadWords(units + j * 8, words);
    unit[0] = FloatOf(words[0]);
    unit[1] = FloatOf(words[1]);
  }

  KVCACHE_DEVICE void Advance() {
    codes += 32;
    starts += Shape::kQueries;
    units += Shape::kQueries;
  }
};

// Adds `count` blocks of a stage, which are the blocks from `first` on.
template <class Shape, bool kBytes>
KVCACHE_DEVICE void ScoreBlocks(const std::uint8_t* memory, const CodedQueries& queries, int slots,
                                int step, int first, int count, BlockScores<Shape>& scores) {
  constexpr int kCodes = kBytes ? 512 : 256;
  const int first_slot = Warp() / Shape::kGroupSets;
  const int slot_bytes = step * (kCodes + kScaleBytes);
  const int stride = Shape::kSlotStep * slot_bytes;
  const std::uint8_t* const slot = memory + first_slot * slot_bytes;
  const std::uint8_t* codes = slot + Lane() % 4 * 64 + Lane() / 4 * 8;
  const std::uint8_t* scale = slot + step * kCodes + Lane() / 4 * 4;
  QueryBlocks<Shape> query(queries, Warp() % Shape::kGroupSets * Shape::kGroups, first);
  KVCACHE_UNROLL_BY(1)
  for (int b = 0; b < count; ++b, codes += kCodes, scale += kScaleBytes) {
    std::uint32_t columns[Shape::kGroups][2];
    std::int32_t starts[Shape::kGroups][4];
    float units[Shape::kGroups][2];
    KVCACHE_UNROLL
    for (int j = 0; j < Shape::kGroups; ++j) query.Load(j, columns[j], starts[j], units[j]);
    query.Advance();
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kWarpSlots; ++i) {
      if (first_slot + i * Shape::kSlotStep >= slots) continue;
      std::uint32_t a[4];
      LoadKeyCodes<kBytes>(codes + i * stride, a);
      const std::uint32_t both = LoadWord(scale + i * stride);
      const float scales[2] = {StoredF16::Low(both), StoredF16::High(both)};
      const float offsets[2] = {Mul(-kIntegers, scales[0]), Mul(-kIntegers, scales[1])};
      KVCACHE_UNROLL
      for (int j = 0; j < Shape::kGroups; ++j) {
        std::int32_t dots[4];
        MmaU8S8(dots, a, columns[j], starts[j]);
        AddBlock(dots, scales, offsets, units[j], scores.sums[i][j]);
      }
    }
  }
}

template <class Shape, class AllStages>
KVCACHE_DEVICE void ScoreBlockKeys(const AttendArgs& args, const SplitInfo& info, AllStages& stages,
                                   const CodedQueries& queries,
                                   AttendShared<Shape::kRows>& shared) {
  BlockScores<Shape> scores;
  KVCACHE_UNROLL
  for (int i = 0; i < Shape::kWarpSlots; ++i) {
    KVCACHE_UNROLL
    for (int j = 0; j < Shape::kGroups; ++j) {
      KVCACHE_UNROLL
      for (int k = 0; k < 4; ++k) scores.sums[i][j][k] = 0.0f;
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
    if (args.k_type == KvType::kQ8_0) {
      ScoreBlocks<Shape, true>(memory, queries, slots, step, first, count, scores);
    } else {
      ScoreBlocks<Shape, false>(memory, queries, slots, step, first, count, scores);
    }
  }
  const int first_row = Warp() % Shape::kGroupSets * Shape::kGroups * 8 + Lane() % 4 * 2;
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
        const int row = first_row + j * 8 + k % 2;
        if (row < Shape::kRows) shared.scores[row][position] = scores.sums[i][j][k];
      }
    }
  }
}

}  // namespace kvcache::cuda
