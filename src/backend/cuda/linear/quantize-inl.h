// Rounds the inputs of block-quantised weights to integers with scales, in the layout of linear_kernels.h, a warp at a
// time. The numbers are those of cpu/linear/block/quantize.cc.
//
// Included by kernels only.
#pragma once

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/linear/block_format-inl.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

inline constexpr int kQuantizeWarps = kQuantizeThreads / 32;
inline constexpr int kLaneInputs = 8;  // 256 inputs, 32 lanes

// The largest of the lane's bits of |x|, over 2^kSteps neighbouring lanes. As integers the order is that
// of the floats, and a NaN is larger than all numbers.
template <int kSteps>
KVCACHE_DEVICE std::uint32_t LargestOf(std::uint32_t bits) {
  KVCACHE_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const std::uint32_t other = ShuffleXor(bits, 1 << step);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// 1 / scale; 0, which makes all values zero, for inputs too small for an inverse and for those that are
// not finite.
KVCACHE_DEVICE float InverseOf(float scale) {
  const std::uint32_t bits = BitsOf(scale);
  return bits >= 0x00800000u && bits < 0x7f800000u ? Div(1.0f, scale) : 0.0f;
}

// Rounds to the nearest integer, to even. REQUIRES: |x| < 2^22.
KVCACHE_DEVICE std::int32_t NearestOf(float x) {
  return static_cast<std::int32_t>(BitsOf(Add(x, 12582912.0f)) - 0x4b400000u);
}

// Where a pair's numbers of a column's tile begin, in an array of `width` floats for each t.
KVCACHE_DEVICE std::int64_t PlaceOf(std::int64_t pair, std::int64_t pairs, int column, int width) {
  return ((column / kTileColumns * pairs + pair) * 4 + column % kTileColumns / 2) * width;
}

// The lane's inputs of a column: zeros behind its end, and for a column that only fills a tile.
KVCACHE_DEVICE int FirstInput(int chunk) {
  return chunk * 256 + Lane() * kLaneInputs;
}
KVCACHE_DEVICE void LoadInputs(const QuantizeTask& task, int chunk, int column,
                               float (&x)[kLaneInputs]) {
  const int from = FirstInput(chunk);
  KVCACHE_UNROLL
  for (float& value : x) value = 0.0f;
  if (from < task.inputs && column < task.columns) {
    const auto* const words = reinterpret_cast<const Words4*>(
        task.x + static_cast<std::int64_t>(column) * task.inputs + from);
    const Words4 both[2] = {words[0], words[1]};
    KVCACHE_UNROLL
    for (int i = 0; i < kLaneInputs; ++i) x[i] = FloatOf(both[i / 4].at[i % 4]);
  }
}

// Quantises 256 inputs of a column, of which the lane has x; kSteps: 2^kSteps lanes share a scale.
template <int kSteps>
KVCACHE_DEVICE void QuantizeChunk(const QuantizeTask& task, int chunk, int column,
                                  const float (&x)[kLaneInputs]) {
  std::uint32_t largest = 0;
  KVCACHE_UNROLL
  for (const float value : x) {
    const std::uint32_t bits = BitsOf(value) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const float scale = Div(FloatOf(LargestOf<kSteps>(largest)), 127.0f);
  const float inverse = InverseOf(scale);
  std::uint32_t words[2] = {0, 0};
  std::int32_t sum = 0;
  KVCACHE_UNROLL
  for (int i = 0; i < kLaneInputs; ++i) {
    const std::int32_t q = inverse == 0.0f ? 0 : NearestOf(Mul(x[i], inverse));
    sum += q;
    words[i / 4] |= (static_cast<std::uint32_t>(q) & 255u) << i % 4 * 8;
  }
  const std::int32_t half_sum = sum + ShuffleXor(sum, 1);
  const std::int32_t block_sum = half_sum + ShuffleXor(half_sum, 2);

  const std::int64_t pairs = PairsOf(task.inputs);
  const std::int64_t pair = chunk * 4 + Lane() / 8;
  if (pair >= pairs) return;
  const int b = Lane() / 4 % 2;     // which 32 inputs of the pair
  const int half = Lane() / 2 % 2;  // of the 32 inputs
  const int g = column % kTileColumns;
  std::uint32_t* const values =
      task.to.values + (column / kTileColumns * pairs + pair) * kPairWords;
  KVCACHE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int t = Lane() % 2 * 2 + i;
    values[(g * 4 + t) * 4 + b * 2 + half] = words[i];
  }
  const int parity = g % 2;
  if constexpr (kSteps == 1) {
    if (Lane() % 2 == 0) {
      task.to.scales[PlaceOf(pair, pairs, column, 8) + (b * 2 + half) * 2 + parity] = scale;
    }
  } else {
    const bool is_first = Lane() % 4 == 0;
    const auto total = static_cast<float>(block_sum);
    float* const sums = task.to.sums + PlaceOf(pair, pairs, column, 4) + b * 2 + parity;
    if constexpr (kSteps == 2) {
      if (is_first) {
        task.to.scales[PlaceOf(pair, pairs, column, 4) + b * 2 + parity] = scale;
        *sums = Mul(scale, total);
      }
    } else {
      if (is_first) *sums = total;
      if (Lane() % 2 == 0) {
        task.to.halves[PlaceOf(pair, pairs, column, 8) + (b * 2 + half) * 2 + parity] =
            static_cast<float>(half_sum);
      }
      if (Lane() == 0) {
        const std::int64_t chunks = task.inputs / 256;
        task.to.scales[(column / kTileColumns * chunks + chunk) * kTileColumns + g] = scale;
      }
    }
  }
}

}  // namespace kvcache::cuda::linear
