// Weighted sums of values of block types, as exact sums of integers. cpu/attention/block/values-inl.h explains
// the arithmetic: for one row and a block of 32 dims, weights times scales become integers, whose unit is the
// split's largest over 32512, and their low and high digits go through products of bytes.
//
//   digits[block of the stage][2 row + (0: low, 1: high)][16 slot + cell]
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/attention/split-inl.h"
#include "backend/cuda/attention/stages-inl.h"
#include "backend/cuda/attention/values-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// The weights of four neighbouring cells of a slot; 0 where the row does not see the position. kFit: all slots
// hold the positions of their number.
template <bool kFit>
KVCACHE_DEVICE void WeightsOf(const SplitInfo& info, int slot, int lane, const float* scores,
                              float (&weights)[4]) {
  if constexpr (kFit) {
    LoadFloats(scores + slot * kAttendTile + lane, weights);
  } else {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::int32_t position = PositionIn(info, slot, lane + i);
      weights[i] = position < 0 ? 0.0f : scores[position];
    }
  }
}

// Byte kByte of each word.
template <int kByte>
KVCACHE_DEVICE std::uint32_t PackBytes(const std::uint32_t (&words)[4]) {
  constexpr std::uint32_t kPick = kByte | (4 + kByte) << 4;
  return BytePermute(BytePermute(words[0], words[1], kPick), BytePermute(words[2], words[3], kPick),
                     0x5410);
}

// Weights times a block's scales, four neighbouring cells a lane at a time.
template <class Shape>
struct BlockProducts {
  static constexpr int kEach = Shape::kMaxSlots * kAttendTile / 128;
  float values[kEach][4];
  std::int32_t largest;  // the bits of the largest magnitude of the lane's

  KVCACHE_DEVICE static int CellOf(int i) { return (i * 32 + Lane()) * 4; }

  // `scales` are the first slot's. kMasks: the product of a weight of 0 is 0, even if the scale is not finite.
  template <bool kFit, bool kMasks>
  KVCACHE_DEVICE void Multiply(const SplitInfo& info, const std::uint8_t* scales, int slot_bytes,
                               const float* scores) {
    largest = 0;
    KVCACHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int slot = CellOf(i) / kAttendTile;
      const int lane = CellOf(i) % kAttendTile;
      if (slot >= info.slots) continue;
      float weights[4];
      WeightsOf<kFit>(info, slot, lane, scores, weights);
      std::uint32_t halves[2];
      LoadWords(scales + slot * slot_bytes + lane * 2, halves);
      KVCACHE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t both = halves[j / 2];
        const float scale = j % 2 == 0 ? StoredF16::Low(both) : StoredF16::High(both);
        float product = Mul(weights[j], scale);
        if (kMasks && weights[j] == 0.0f) product = 0.0f;
        values[i][j] = product;
        largest = Larger(largest, MagnitudeBits(product));
      }
    }
  }
};

// Writes the integers of one row and one block, by a warp. `largest` are the bits of the largest product.
template <class Shape>
KVCACHE_DEVICE void WriteDigits(const SplitInfo& info, const BlockProducts<Shape>& products,
                                std::int32_t largest, std::int32_t offset, int row, int block,
                                WeightDigits<Shape>& to) {
  const Unit unit = UnitOf(largest, 127.0f * 256.0f);
  std::uint32_t sum = 0;
  KVCACHE_UNROLL
  for (int i = 0; i < products.kEach; ++i) {
    const int cell = products.CellOf(i);
    if (cell >= info.slots * kAttendTile) continue;
    // The second byte of (integer + 128) is the high digit; the lowest is the low digit + 128.
    std::uint32_t bits[4];
    KVCACHE_UNROLL
    for (int j = 0; j < 4; ++j) {
      bits[j] = BitsOf(Fma(products.values[i][j], unit.inverse, kIntegers + 128.0f));
    }
    sum += (bits[0] + bits[1]) + (bits[2] + bits[3]) -
           4u * static_cast<std::uint32_t>(kIntegerBits + 128);
    reinterpret_cast<Word1*>(&to.digits[block][2 * row][cell])->w =
        PackBytes<0>(bits) ^ 0x80808080u;
    reinterpret_cast<Word1*>(&to.digits[block][2 * row + 1][cell])->w = PackBytes<1>(bits);
  }
  const std::uint32_t all = static_cast<std::uint32_t>(SumOfWarp(static_cast<std::int32_t>(sum)));
  if (Lane() == 0) {
    to.units[block][row] = unit.unit;
    to.corrections[block][row] =
        static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(offset) * all);
  }
}

// The same from weights and scales, for slots that hold any positions and scales that are not finite: seldom,
// so it is not inlined.
template <class Shape>
KVCACHE_OUTLINED void WeighAnyBlock(const SplitInfo& info, const std::uint8_t* scales,
                                    int slot_bytes, std::int32_t offset, const float* scores,
                                    int row, int block, WeightDigits<Shape>& to) {
  BlockProducts<Shape> products;
  products.template Multiply<false, true>(info, scales, slot_bytes, scores);
  WriteDigits<Shape>(info, products, LargestOfWarp(products.largest), offset, row, block, to);
}

// `fit`: all slots hold the positions of their number.
template <class Shape>
KVCACHE_DEVICE void WeighBlock(const SplitInfo& info, bool fit, const std::uint8_t* scales,
                               int slot_bytes, std::int32_t offset, const float* scores, int row,
                               int block, WeightDigits<Shape>& to) {
  if (fit) {
    BlockProducts<Shape> products;
    products.template Multiply<true, false>(info, scales, slot_bytes, scores);
    const std::int32_t largest = LargestOfWarp(products.largest);
    if (largest < 0x7f800000) {
      return WriteDigits<Shape>(info, products, largest, offset, row, block, to);
    }
  }
  WeighAnyBlock<Shape>(info, scales, slot_bytes, offset, scores, row, block, to);
}

// Values 16 half + 2g and 16 half + 2g + 1 of a block, for cells 4t … of a slot: rows g and g + 8 of a product.
template <bool kBytes>
KVCACHE_DEVICE void LoadValueCodes(const std::uint8_t* codes, int half, std::uint32_t (&a)[2]) {
  const int line = (kBytes ? half * 4 : 0) + Lane() % 4;
  LoadWords(codes + line * 64 + Lane() / 4 * 8, a);
  if constexpr (!kBytes) {
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) a[i] = a[i] >> (half * 4) & 0x0f0f0f0fu;
  }
}

// Sums one half of a block for some groups of four rows, by a warp. `codes` are the first slot's.
template <class Shape, bool kBytes>
KVCACHE_DEVICE void SumHalf(const WeightDigits<Shape>& weights,
                            const AttendShared<Shape::kRows>& shared, const std::uint8_t* codes,
                            int slot_bytes, int slots, int half, int block, int first_quad, int dim,
                            const Results& results) {
  constexpr int kQuads = Shape::kQuadsAtOnce;
  const int g = Lane() / 4;
  const int t = Lane() % 4;
  std::int32_t sums[kQuads][4];
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) sums[q][i] = 0;
  }
  KVCACHE_UNROLL_BY(2)
  for (int slot = 0; slot < slots; slot += 2) {
    const bool two = slot + 1 < slots;
    std::uint32_t a[4] = {0, 0, 0, 0};
    std::uint32_t pair[2];
    LoadValueCodes<kBytes>(codes + slot * slot_bytes, half, pair);
    a[0] = pair[0];
    a[1] = pair[1];
    if (two) {
      LoadValueCodes<kBytes>(codes + (slot + 1) * slot_bytes, half, pair);
      a[2] = pair[0];
      a[3] = pair[1];
    }
    KVCACHE_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const std::uint8_t* const digits =
          &weights.digits[block][(first_quad + q) * 8 + g][slot * kAttendTile + t * 4];
      const std::uint32_t b[2] = {LoadWord(digits), two ? LoadWord(digits + kAttendTile) : 0};
      MmaU8S8(sums[q], a, b);
    }
  }
  float before[kQuads][2];
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const int row = (first_quad + q) * 4 + t;
    const Deposit deposit(shared, results.merge, row);
    const float* const at = results.first + row * results.row_floats + dim + 2 * g;
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      before[q][i] = row < results.rows ? deposit.Before(at + i) : 0.0f;
    }
  }
  KVCACHE_UNROLL
  for (int q = 0; q < kQuads; ++q) {
    const int row = (first_quad + q) * 4 + t;
    if (row >= results.rows) continue;
    const Deposit deposit(shared, results.merge, row);
    float* const to = results.first + row * results.row_floats + dim + 2 * g;
    const auto correction = static_cast<std::uint32_t>(weights.corrections[block][row]);
    KVCACHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t total = static_cast<std::uint32_t>(sums[q][2 * i]) +
                                  (static_cast<std::uint32_t>(sums[q][2 * i + 1]) << 8) +
                                  correction;
      const float sum =
          Mul(static_cast<float>(static_cast<std::int32_t>(total)), weights.units[block][row]);
      deposit.Store(before[q][i], sum, to + i);
    }
  }
}

// The blocks of one stage: `count` from `first` on.
template <class Shape, bool kBytes>
KVCACHE_DEVICE void SumBlocks(const std::uint8_t* memory, const SplitInfo& info, int first,
                              int count, const AttendShared<Shape::kRows>& shared,
                              WeightDigits<Shape>& weights, const Results& results) {
  constexpr int kCodes = kBytes ? 512 : 256;
  constexpr std::int32_t kOffset = kBytes ? 128 : 8;
  const int step = info.value_step;
  const int slot_bytes = step * (kCodes + kScaleBytes);
  const bool fit = SlotsFit(info);
  KVCACHE_UNROLL_BY(1)
  for (int b = 0; b < count; b += Shape::kBlocksAtOnce) {
    const int blocks = Smaller(Shape::kBlocksAtOnce, count - b);
    if (b > 0) BlockBarrier();  // the integers before are no longer needed
    KVCACHE_UNROLL_BY(1)
    for (int i = Warp(); i < blocks * Shape::kRows; i += kAttendWarps) {
      const int row = i % Shape::kRows;
      const int block = i / Shape::kRows;
      const std::uint8_t* const scales = memory + step * kCodes + (b + block) * kScaleBytes;
      WeighBlock<Shape>(info, fit, scales, slot_bytes, kOffset, shared.scores[row], row, block,
                        weights);
    }
    BlockBarrier();
    KVCACHE_UNROLL_BY(1)
    for (int i = Warp(); i < blocks * 2 * Shape::kQuadSets; i += kAttendWarps) {
      const int half = i % 2;
      const int set = i / 2 % Shape::kQuadSets;
      const int block = i / 2 / Shape::kQuadSets;
      SumHalf<Shape, kBytes>(weights, shared, memory + (b + block) * kCodes, slot_bytes, info.slots,
                             half, block, set * Shape::kQuadsAtOnce,
                             (first + b + block) * 32 + half * 16, results);
    }
  }
}

template <class Shape, class AllStages>
KVCACHE_DEVICE void SumBlockValues(const AttendArgs& args, const SplitInfo& info, AllStages& stages,
                                   const AttendShared<Shape::kRows>& shared,
                                   WeightDigits<Shape>& weights, const Results& results) {
  const int stage_count = info.value_stages;
  KVCACHE_UNROLL_BY(1)
  for (int stage = 0; stage < stage_count; ++stage) {
    const std::uint8_t* const memory = stages.Next();
    const int first = stage * info.value_step;
    const int count = Smaller(info.value_step, args.v_dim / 32 - first);
    if (args.v_type == KvType::kQ8_0) {
      SumBlocks<Shape, true>(memory, info, first, count, shared, weights, results);
    } else {
      SumBlocks<Shape, false>(memory, info, first, count, shared, weights, results);
    }
  }
}

}  // namespace kvcache::cuda
