// Merges the partial results of one row in ascending order, applies the sink, divides and writes the output.
// Block x: the token; block y: the head; block z: 128 or 512 dims.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// The results of some splits that are merged together.
struct FoundResults {
  float max;  // the largest score of all so far
  int count;  // results in which something is visible
};

// Lists those of up to kMergeThreads results, one a thread, in which something is visible, with their factors. The
// largest score before each is the maximum of those before it, exact in any order.
KVCACHE_DEVICE FoundResults FindFactors(MergeShared& shared, float before, float max, float sum) {
  const bool visible = max != MinusInfinity();
  const std::uint32_t mask = Ballot(visible);
  float prefix = max;  // of this lane and those before it
  KVCACHE_UNROLL
  for (int apart = 1; apart < 32; apart *= 2) {
    const float other = Shuffle(prefix, Lane() >= apart ? Lane() - apart : Lane());
    prefix = LargerOrNan(other, prefix);
  }
  const float left = Shuffle(prefix, Lane() > 0 ? Lane() - 1 : 0);
  if (Lane() == 31) {
    shared.max[Warp()] = prefix;
    shared.visible[Warp()] = PopCount(mask);
  }
  BlockBarrier();
  float all = before;
  int count = 0;
  int place = 0;
  for (int warp = 0; warp < kMergeThreads / 32; ++warp) {
    if (warp == Warp()) {
      before = Lane() > 0 ? LargerOrNan(all, left) : all;
      place = count + PopCount(mask & ((1u << Lane()) - 1));
    }
    all = LargerOrNan(all, shared.max[warp]);
    count += shared.visible[warp];
  }
  if (visible) {
    const MergeFactors factors = FactorsOf(before, max);
    shared.place[place] = Thread();
    shared.keep[place] = factors.keep;
    shared.add[place] = factors.add;
    shared.sum[place] = sum;
  }
  BlockBarrier();
  return {all, count};
}

// A thread has kDims values of a row, kMergeThreads apart.
template <int kDims>
struct MergedRow {
  float max;
  float sum;
  float values[kDims];
};

// Merges up to N of the listed results, `count` from number `first` on.
template <int N, int kDims>
KVCACHE_DEVICE void MergeListed(const MergeArgs& args, const MergeShared& shared, const float* from,
                                std::int64_t distance, int first, int count, int d,
                                MergedRow<kDims>& row) {
  float next[N][kDims];
  KVCACHE_UNROLL
  for (int i = 0; i < N; ++i) {
    if (i >= count) continue;
    const float* const result = from + shared.place[first + i] * distance + d;
    KVCACHE_UNROLL
    for (int k = 0; k < kDims; ++k) {
      if (d + k * kMergeThreads < args.v_dim) next[i][k] = result[k * kMergeThreads];
    }
  }
  KVCACHE_UNROLL
  for (int i = 0; i < N; ++i) {
    if (i >= count) continue;
    const MergeFactors factors{shared.keep[first + i], shared.add[first + i]};
    row.sum = Merged(factors, row.sum, shared.sum[first + i]);
    KVCACHE_UNROLL
    for (int k = 0; k < kDims; ++k) {
      if (d + k * kMergeThreads < args.v_dim) {
        row.values[k] = Merged(factors, row.values[k], next[i][k]);
      }
    }
  }
}

// Merges `count` results, whose first is at `from`; this thread's values begin at `d`.
template <int kDims>
KVCACHE_DEVICE void MergeResults(const MergeArgs& args, const float* from, std::int64_t distance,
                                 int count, int d, MergeShared& shared, MergedRow<kDims>& row) {
  constexpr int kAtOnce = kMergeLoads / kDims;
  const std::int64_t last = args.partial_floats - kAttendTile;
  KVCACHE_UNROLL_BY(1)
  for (int first = 0; first < count; first += kMergeThreads, from += kMergeThreads * distance) {
    const bool used = first + Thread() < count;
    const float* const own = from + Thread() * distance + last;
    const FoundResults found =
        FindFactors(shared, row.max, used ? own[0] : MinusInfinity(), used ? own[1] : 0.0f);
    row.max = found.max;
    KVCACHE_UNROLL_BY(1)
    for (int i = 0; i < found.count; i += kAtOnce) {
      MergeListed<kAtOnce>(args, shared, from, distance, i, found.count - i, d, row);
    }
    BlockBarrier();  // the list is no longer needed
  }
}

// The values of this thread's dims, d + i × kMergeThreads, of the row's result.
template <int kDims>
struct FinishedValues {
  float values[kDims];
};
template <int kDims>
KVCACHE_DEVICE FinishedValues<kDims> MergeRow(const MergeArgs& args, const MergeToken& token,
                                              int head, int d, MergeShared& shared) {
  MergedRow<kDims> row{MinusInfinity(), 0.0f, {}};
  for (int i = 0; i < token.steps; ++i) {
    const MergeStep step = args.steps[token.first_step + i];
    const std::int64_t at =
        (std::int64_t{BlockX() - step.first_token} * args.group + head % args.group) *
        args.partial_floats;
    MergeResults(args, args.partials + step.first + head / args.group * step.of_head + at,
                 step.distance, step.count, d, shared, row);
  }
  const bool hidden = row.max == MinusInfinity();
  float keep = 1.0f;
  if (args.sinks != nullptr && !hidden) {
    const float sink = args.sinks[head];
    const float max = LargerOrNan(row.max, sink);
    keep = arithmetic::Exp(Sub(row.max, max));
    row.sum = Fma(row.sum, keep, arithmetic::Exp(Sub(sink, max)));
  }
  FinishedValues<kDims> finished;
  KVCACHE_UNROLL
  for (int k = 0; k < kDims; ++k) {
    finished.values[k] = hidden ? 0.0f : Div(Mul(row.values[k], keep), row.sum);
  }
  return finished;
}

KVCACHE_DEVICE float* OutOf(const MergeArgs& args, const MergeToken& token, int head) {
  return args.out + (std::int64_t{token.index} * args.heads + head) * args.v_dim;
}

template <int kDims>
KVCACHE_DEVICE void Merge(const MergeArgs& args) {
  const MergeToken token = args.tokens[BlockX()];
  const int head = BlockY();
  const int d = BlockZ() * kMergeThreads * kDims + Thread();
  const FinishedValues<kDims> row =
      MergeRow<kDims>(args, token, head, d, SharedMemory<MergeShared>());
  float* const out = OutOf(args, token, head);
  KVCACHE_UNROLL
  for (int k = 0; k < kDims; ++k) {
    if (d + k * kMergeThreads < args.v_dim) out[d + k * kMergeThreads] = row.values[k];
  }
}

}  // namespace kvcache::cuda
