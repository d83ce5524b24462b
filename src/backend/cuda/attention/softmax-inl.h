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

// Turns the scores of N rows into weights, by a warp: rows first, first + kAttendWarps, … Weights of positions that a
// row does not see are +0. The result is the largest score and, in lane 0, the sum of the weights.
struct RowSums {
  float max;
  float sum;
};
template <int N, int R>
KVCACHE_DEVICE void WeighSome(const AttendArgs& args, const SplitInfo& info, std::int32_t base,
                              int first, const int (&begin)[N], const int (&end)[N],
                              AttendShared<R>& shared, RowSums (&sums)[N]) {
  constexpr int kEach = kAttendSplit / 32;
  float values[N][kEach];
  KVCACHE_UNROLL
  for (int n = 0; n < N; ++n) {
    const int r = first + n * kAttendWarps;
    const RowInfo row = shared.rows[r];
    sums[n].max = MinusInfinity();
    KVCACHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int position = i * 32 + Lane();
      values[n][i] = MinusInfinity();
      if (position < begin[n] || position >= end[n] || info.cells[position] < 0) continue;
      values[n][i] = FinalScore(args, row, base, position, shared.scores[r][position]);
      sums[n].max = LargerOrNan(sums[n].max, values[n][i]);
    }
  }
  KVCACHE_UNROLL
  for (int n = 0; n < N; ++n) sums[n].max = WarpMax(sums[n].max);
  KVCACHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    KVCACHE_UNROLL
    for (int n = 0; n < N; ++n) {
      const bool seen = values[n][i] != MinusInfinity();
      shared.scores[first + n * kAttendWarps][i * 32 + Lane()] =
          seen ? arithmetic::Exp(Sub(values[n][i], sums[n].max)) : 0.0f;
    }
  }
  WarpBarrier();
  // The sixteen virtual lanes: value j in lane j mod 16 of its position.
  KVCACHE_UNROLL
  for (int n = 0; n < N; ++n) sums[n].sum = 0.0f;
  KVCACHE_UNROLL
  for (int i = 0; i < kAttendSplit / 16; ++i) {
    KVCACHE_UNROLL
    for (int n = 0; n < N; ++n) {
      const float weight = shared.scores[first + n * kAttendWarps][i * 16 + Lane() % 16];
      sums[n].sum = Add(sums[n].sum, weight);
    }
  }
  KVCACHE_UNROLL
  for (int apart = 8; apart > 0; apart /= 2) {
    KVCACHE_UNROLL
    for (int n = 0; n < N; ++n) sums[n].sum = Add(sums[n].sum, ShuffleXor(sums[n].sum, apart));
  }
}

// All rows. `partials` is null if the splits are merged; else the split's results, args.partial_floats a row.
template <class Shape>
KVCACHE_DEVICE void WeighRows(const AttendArgs& args, const AttendTask& task, const SplitInfo& info,
                              std::int32_t split, float* partials,
                              AttendShared<Shape::kRows>& shared) {
  constexpr int kAtOnce = Shape::kRows > kAttendWarps ? 2 : 1;
  const std::int32_t base = split * kAttendSplit;
  for (int first = Warp(); first < Shape::kRows; first += kAtOnce * kAttendWarps) {
    int begin[kAtOnce];
    int end[kAtOnce];
    KVCACHE_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      const RowInfo& row = shared.rows[first + n * kAttendWarps];
      begin[n] = Larger(row.begin, base) - base;
      end[n] = Smaller(Larger(row.end, base) - base, kAttendSplit);
    }
    RowSums sums[kAtOnce];
    WeighSome<kAtOnce>(args, info, base, first, begin, end, shared, sums);
    if (Lane() != 0) continue;
    KVCACHE_UNROLL
    for (int n = 0; n < kAtOnce; ++n) {
      const int r = first + n * kAttendWarps;
      const bool hidden = sums[n].max == MinusInfinity();
      shared.begin[r] = hidden ? 0 : begin[n];
      shared.end[r] = hidden ? 0 : end[n];
      if (partials == nullptr) {
        const MergeFactors factors = FactorsOf(shared.max[r], sums[n].max);
        shared.keep[r] = factors.keep;
        shared.add[r] = factors.add;
        shared.sum[r] = Merged(factors, shared.sum[r], sums[n].sum);
        shared.max[r] = LargerOrNan(shared.max[r], sums[n].max);
      } else if (r < task.rows) {
        float* const last = partials + (r + 1) * args.partial_floats - kAttendTile;
        last[0] = sums[n].max;
        last[1] = sums[n].sum;
      }
    }
  }
}

// Where a row's weighted sums of a split go: to results of their own, or into the result so far, if there is one.
struct Deposit {
  MergeFactors factors;

  template <int R>
  KVCACHE_DEVICE Deposit(const AttendShared<R>& shared, bool merge, int r)
      : factors{merge ? shared.keep[r] : -1.0f, merge ? shared.add[r] : 1.0f} {}

  KVCACHE_DEVICE bool Changes() const { return factors.add >= 0.0f; }
  // The result so far. Callers load those of all their values before they store one, since a load would wait for each.
  KVCACHE_DEVICE float Before(const float* at) const {
    return Changes() && factors.keep >= 0.0f ? *at : 0.0f;
  }
  KVCACHE_DEVICE void Store(float before, float sum, float* at) const {
    if (Changes()) *at = Merged(factors, before, sum);
  }
};

}  // namespace kvcache::cuda
