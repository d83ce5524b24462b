// Merges the partial results of one row in ascending order, applies the sink, divides and writes the output.
// Block x: the token; block y: the head; block z: 512 dims.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// Computes the factors of up to kMergeThreads results, one a thread. The largest score before each is the maximum
// of those before it, exact in any order. Returns the largest of all so far.
KVCACHE_DEVICE float FindFactors(MergeShared& shared, float before, float max, float sum) {
  float prefix = max;  // of this lane and those before it
  KVCACHE_UNROLL
  for (int apart = 1; apart < 32; apart *= 2) {
    const float other = Shuffle(prefix, Lane() >= apart ? Lane() - apart : Lane());
    prefix = LargerOrNan(other, prefix);
  }
  if (Lane() == 31) shared.warp_max[Warp()] = prefix;
  const float left = Shuffle(prefix, Lane() > 0 ? Lane() - 1 : 0);
  BlockBarrier();
  float all = before;
  for (int warp = 0; warp < kMergeThreads / 32; ++warp) {
    if (warp == Warp()) before = Lane() > 0 ? LargerOrNan(all, left) : all;
    all = LargerOrNan(all, shared.warp_max[warp]);
  }
  const MergeFactors factors = FactorsOf(before, max);
  shared.keep[Thread()] = factors.keep;
  shared.add[Thread()] = factors.add;
  shared.sum[Thread()] = sum;
  BlockBarrier();
  return all;
}

struct MergedRow {
  float max;
  float sum;
  float values[kMergeDims];
};

// Merges `count` results, whose first is at `from`; this thread's values begin at `d`.
KVCACHE_DEVICE void MergeResults(const MergeArgs& args, const float* from, std::int64_t distance,
                                 int count, int d, MergeShared& shared, MergedRow& row) {
  const std::int64_t last = args.partial_floats - kAttendTile;
  for (int first = 0; first < count; first += kMergeThreads, from += kMergeThreads * distance) {
    const int now = Smaller(kMergeThreads, count - first);
    const float* const own = from + Thread() * distance + last;
    const bool used = Thread() < now;
    row.max = FindFactors(shared, row.max, used ? own[0] : MinusInfinity(), used ? own[1] : 0.0f);
    KVCACHE_UNROLL_BY(4)
    for (int i = 0; i < now; ++i) {
      const MergeFactors factors{shared.keep[i], shared.add[i]};
      if (factors.add < 0.0f) continue;  // nothing is visible, and no values may be there
      row.sum = Merged(factors, row.sum, shared.sum[i]);
      KVCACHE_UNROLL
      for (int k = 0; k < kMergeDims; ++k) {
        if (d + k * kMergeThreads >= args.v_dim) continue;
        const float next = from[i * distance + d + k * kMergeThreads];
        row.values[k] = Merged(factors, row.values[k], next);
      }
    }
    BlockBarrier();  // the factors are no longer needed
  }
}

KVCACHE_DEVICE void Merge(const MergeArgs& args) {
  MergeShared& shared = SharedMemory<MergeShared>();
  const MergeToken token = args.tokens[BlockX()];
  const int head = BlockY();
  const int d = BlockZ() * kMergeThreads * kMergeDims + Thread();
  MergedRow row{MinusInfinity(), 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}};
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
  float* const out = args.out + (std::int64_t{token.index} * args.heads + head) * args.v_dim;
  KVCACHE_UNROLL
  for (int k = 0; k < kMergeDims; ++k) {
    if (d + k * kMergeThreads >= args.v_dim) continue;
    out[d + k * kMergeThreads] = hidden ? 0.0f : Div(Mul(row.values[k], keep), row.sum);
  }
}

}  // namespace kvcache::cuda
