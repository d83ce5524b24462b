// The softmax of each row in a split, and the factors with which the split joins the result so far.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/language/kernel.h"
#include "base/arithmetic/activations.h"

namespace kvcache::cuda {

// The larger of both, NaN if one is.
KVCACHE_DEVICE float LargerOrNan(float a, float b) {
  return b > a || b != b ? b : a;
}

// The merge of docs/design/exactness.md: the result so far is multiplied by `keep`, the next by `add`.
struct MergeFactors {
  float keep;  // negative: nothing was visible before, and the next is taken as it is
  float add;   // negative: nothing is visible in the next
};
KVCACHE_DEVICE MergeFactors FactorsOf(float max, float next) {
  if (next == MinusInfinity()) return {1.0f, -1.0f};
  if (max == MinusInfinity()) return {-1.0f, 1.0f};
  const float larger = LargerOrNan(max, next);
  return {arithmetic::Exp(Sub(max, larger)), arithmetic::Exp(Sub(next, larger))};
}
KVCACHE_DEVICE float Merged(const MergeFactors& factors, float sum, float next) {
  if (factors.add < 0.0f) return sum;
  return factors.keep < 0.0f ? next : Fma(sum, factors.keep, Mul(next, factors.add));
}

// The largest of the warp's scores.
KVCACHE_DEVICE float WarpMax(float x) {
  KVCACHE_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = LargerOrNan(x, ShuffleXor(x, mask));
  return x;
}

// The score after soft-cap and bias. `position` is relative to the split's first, which is `base`.
KVCACHE_DEVICE float FinalScore(const AttendArgs& args, const RowInfo& row, std::int32_t base,
                                int position, float score) {
  if (args.soft_cap > 0.0f) score = arithmetic::SoftCap(score, args.soft_cap);
  if (args.bias != nullptr) {
    const std::int64_t distance = std::int64_t{base} + position - row.position + args.past;
    const std::int64_t at =
        Smaller<std::int64_t>(Larger<std::int64_t>(distance, 0), args.distances - 1);
    score = Add(score, args.bias[std::int64_t{row.head} * args.distances + at]);
  }
  return score;
}

// Turns the scores of one row into weights, by a warp. Weights of positions that the row does not see are
// +0. The result is the largest score and, in lane 0, the sum of the weights.
struct RowSums {
  float max;
  float sum;
};
KVCACHE_DEVICE RowSums WeighRow(const AttendArgs& args, const SplitInfo& info, const RowInfo& row,
                                std::int32_t base, int begin, int end, float* scores) {
  constexpr int kEach = kAttendSplit / 32;
  float values[kEach];
  float max = MinusInfinity();
  KVCACHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int position = i * 32 + Lane();
    values[i] = MinusInfinity();
    if (position < begin || position >= end || info.cells[position] < 0) continue;
    values[i] = FinalScore(args, row, base, position, scores[position]);
    max = LargerOrNan(max, values[i]);
  }
  max = WarpMax(max);
  KVCACHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const bool seen = values[i] != MinusInfinity();
    scores[i * 32 + Lane()] = seen ? arithmetic::Exp(Sub(values[i], max)) : 0.0f;
  }
  WarpBarrier();
  // The sixteen virtual lanes: value j in lane j mod 16 of its position.
  float sum = 0.0f;
  KVCACHE_UNROLL
  for (int i = 0; i < kAttendSplit / 16; ++i) sum = Add(sum, scores[i * 16 + Lane() % 16]);
  KVCACHE_UNROLL
  for (int apart = 8; apart > 0; apart /= 2) sum = Add(sum, ShuffleXor(sum, apart));
  return {max, sum};
}

// All rows. `partials` is null if the splits are merged; else the split's results, args.partial_floats a row.
template <class Shape>
KVCACHE_DEVICE void WeighRows(const AttendArgs& args, const AttendTask& task, const SplitInfo& info,
                              std::int32_t split, float* partials,
                              AttendShared<Shape::kRows>& shared) {
  const std::int32_t base = split * kAttendSplit;
  for (int r = Warp(); r < Shape::kRows; r += kAttendWarps) {
    const RowInfo row = shared.rows[r];
    const int begin = Larger(row.begin, base) - base;
    const int end = Smaller(Larger(row.end, base) - base, kAttendSplit);
    const RowSums sums = WeighRow(args, info, row, base, begin, end, shared.scores[r]);
    if (Lane() != 0) continue;
    const bool hidden = sums.max == MinusInfinity();
    shared.begin[r] = hidden ? 0 : begin;
    shared.end[r] = hidden ? 0 : end;
    if (partials == nullptr) {
      const MergeFactors factors = FactorsOf(shared.max[r], sums.max);
      shared.keep[r] = factors.keep;
      shared.add[r] = factors.add;
      shared.sum[r] = Merged(factors, shared.sum[r], sums.sum);
      shared.max[r] = LargerOrNan(shared.max[r], sums.max);
    } else if (r < task.rows) {
      float* const last = partials + (r + 1) * args.partial_floats - kAttendTile;
      last[0] = sums.max;
      last[1] = sums.sum;
    }
  }
}

// Adds a split's weighted sum to the result of row r.
template <class Shape>
KVCACHE_DEVICE void Deposit(const AttendShared<Shape::kRows>& shared, bool merge, int r, float sum,
                            float* to) {
  if (!merge) {
    *to = sum;
    return;
  }
  const MergeFactors factors{shared.keep[r], shared.add[r]};
  if (factors.add < 0.0f) return;
  *to = factors.keep < 0.0f ? sum : Fma(*to, factors.keep, Mul(sum, factors.add));
}

}  // namespace kvcache::cuda
