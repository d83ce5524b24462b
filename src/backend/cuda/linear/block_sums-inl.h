// The steps of the chains of docs/design/exactness.md, on fragments of the matrix instruction: a lane has
// rows 2 g and 2 g + 1, and columns 2 t and 2 t + 1 of a tile.
#pragma once

#include <cstdint>

#include "backend/cuda/linear/block_format-inl.h"
#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

// Sums of integers start here: their bits are then floats, 12582912 + sum. |sum| is at most
// 32 · 128 · 127, which is below 2^22.
inline constexpr std::int32_t kSumStart = 0x4b400000;
inline constexpr float kSumStartValue = 12582912.0f;

// The start of a fragment of sums.
struct Starts {
  std::int32_t at[4] = {kSumStart, kSumStart, kSumStart, kSumStart};

  // The same, but neither as constants, which the compiler for devices before sm_90 puts into registers again for
  // each matrix instruction, nor as numbers that all lanes share, which it keeps elsewhere: sizes are not negative, and
  // a shuffle with the lane itself changes nothing, but it does not know that.
  static KVCACHE_DEVICE Starts Hidden(const LinearTask& task) {
    const std::int32_t starts[4] = {
        kSumStart + (task.inputs >> 31), kSumStart + (task.outputs >> 31),
        kSumStart + (task.columns >> 31), kSumStart + (task.first_block >> 31)};
    Starts hidden;
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) hidden.at[i] = Shuffle(starts[i], Lane());
    return hidden;
  }
};

// The exact sums of 32 inputs, or of each half: [part][row][column], as floats above kSumStartValue.
template <int kParts>
struct Dots {
  float at[kParts][2][2];
};

// a: MakeFragment; b: the two halves of a column.
template <int kParts>
KVCACHE_DEVICE Dots<kParts> DotsOf(const Starts& starts, const std::uint32_t (&a)[4],
                                   const std::uint32_t (&b)[2]) {
  Dots<kParts> dots;
  KVCACHE_UNROLL
  for (int part = 0; part < kParts; ++part) {
    std::int32_t d[4] = {starts.at[0], starts.at[1], starts.at[2], starts.at[3]};
    if constexpr (kParts == 1) {
      MmaS8(d, a, b);
    } else {
      MmaS8Of16(d, {a[2 * part], a[2 * part + 1]}, b[part]);
    }
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      dots.at[part][i / 2][i % 2] = FloatOf(static_cast<std::uint32_t>(d[i]));
    }
  }
  return dots;
}

// The scales of the lane's rows in the form that the steps below take.
template <DType kType>
struct Factors {
  static constexpr Chain kChain = ChainOf(kType);
  static constexpr int kParts = PartsOf(kChain);
  float scale[kParts][2];
  float start[kParts][2];  // not per 256: -12582912 · scale
  float minimum[kParts][2];

  Factors() = default;
  KVCACHE_DEVICE explicit Factors(const RowScales<kType>& rows) {
    KVCACHE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      KVCACHE_UNROLL
      for (int row = 0; row < 2; ++row) {
        scale[part][row] = rows.scale[part][row];
        if constexpr (!IsPer256(kChain)) start[part][row] = Mul(scale[part][row], -kSumStartValue);
        if constexpr (HasMinima(kChain)) minimum[part][row] = rows.minimum[part][row];
      }
    }
  }
};

// scaled(dot, d_w): the product, rounded once.
template <DType kType>
KVCACHE_DEVICE float ScaledOf(const Dots<Factors<kType>::kParts>& dots, const Factors<kType>& w,
                              int part, int row, int column) {
  return Fma(dots.at[part][row][column], w.scale[part][row], w.start[part][row]);
}

// A step of the chain of 256 inputs. `sum`: of the inputs that share the scale.
template <DType kType>
KVCACHE_DEVICE float AddTo(float a, const Dots<Factors<kType>::kParts>& dots,
                           const Factors<kType>& w, int part, int row, int column, float sum) {
  a = Fma(Sub(dots.at[part][row][column], kSumStartValue), w.scale[part][row], a);
  if constexpr (HasMinima(Factors<kType>::kChain)) a = Fma(w.minimum[part][row], sum, a);
  return a;
}

}  // namespace kvcache::cuda::linear
