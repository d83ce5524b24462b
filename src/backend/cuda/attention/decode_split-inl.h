// What the kernels that decode share: where the tiles of a split are, its softmax, and how it joins the result so far.
//
// decode_R_T serves tasks of up to R rows whose splits are aligned: positions that the task sees follow one another
// without holes, and a tile of sixteen of them is a tile of cells. Each warp has two tiles of a split's keys and some
// dims of its values, and copies what it reads itself, so that a block needs two or three barriers for a split.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/attention/split-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// The part of a split that the task sees. All lanes have the same, but for `tile`.
struct SeenSplit {
  std::int32_t base;   // the split's first position
  std::int32_t begin;  // positions [begin, end) behind it are seen
  std::int32_t end;
  std::int32_t tile;  // of cells: the one of the positions from 16 × (lane mod 16) on; -1: not seen

  KVCACHE_DEVICE bool Has(int of_tile) const {
    return of_tile * kAttendTile < end && (of_tile + 1) * kAttendTile > begin;
  }
  KVCACHE_DEVICE int FirstTile() const { return begin / kAttendTile; }
  KVCACHE_DEVICE int EndTile() const { return (end + kAttendTile - 1) / kAttendTile; }
};

// Finds the splits of a task, one after another.
class SeenSplits {
 public:
  KVCACHE_DEVICE SeenSplits(const AttendArgs& args, const AttendTask& task)
      : runs_(args.runs + task.first_run),
        splits_(args.splits + task.first_split),
        run_count_(task.runs),
        count_(task.splits),
        begin_(task.seen_begin),
        end_(task.seen_end),
        first_(runs_[0]) {}

  // Split i of the task; behind the last, one that sees nothing.
  KVCACHE_DEVICE SeenSplit At(int i) const {
    if (i >= count_) return {0, 0, 0, -1};
    SeenSplit split{};
    split.base = splits_[i] * kAttendSplit;
    split.begin = Larger(begin_ - split.base, 0);
    split.end = Smaller(end_ - split.base, kAttendSplit);
    const int tile = Lane() % kAttendTile;
    split.tile = -1;
    if (split.Has(tile)) {
      const std::int32_t position = split.base + Larger(tile * kAttendTile, split.begin);
      const std::int32_t cell = run_count_ == 1 ? position - first_.position + first_.cell
                                                : CellOf(runs_, run_count_, position);
      split.tile = cell / kAttendTile;
    }
    return split;
  }

 private:
  const AttendRun* runs_;
  const std::int32_t* splits_;
  std::int32_t run_count_;
  std::int32_t count_;
  std::int32_t begin_;
  std::int32_t end_;
  AttendRun first_;
};

// Rows with the positions that the task sees of them.
template <int R>
KVCACHE_DEVICE void ListDecodeRows(const AttendArgs& args, const AttendTask& task,
                                   DecodeShared<R>& shared) {
  const int r = Thread();
  if (r >= R) return;
  RowInfo row{-1, 0, 0, 0, 0};
  if (r < task.rows) {
    const int of_all = task.first_row + r;
    const AttendToken token = args.tokens[task.first_token + of_all / args.group];
    const int head = task.kv_head * args.group + of_all % args.group;
    row = {token.index * args.heads + head, head, token.position,
           Larger(token.begin, task.seen_begin), Smaller(token.end, task.seen_end)};
  }
  shared.rows[r] = row;
  shared.max[r] = MinusInfinity();
  shared.sum[r] = 0.0f;
}

// An integer for each float: they order as the floats do, and NaN is the largest.
KVCACHE_DEVICE std::int32_t OrderOf(float x) {
  const auto bits = static_cast<std::int32_t>(BitsOf(x));
  return x != x ? 0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
}
KVCACHE_DEVICE float OfOrder(std::int32_t order) {
  return FloatOf(static_cast<std::uint32_t>(order ^ (order >> 31 & 0x7fffffff)));
}

// Scores of a row at positions behind `base`, after soft-cap and bias; minus infinity where the row does not see them.
template <int N>
KVCACHE_DEVICE void FinishScores(const AttendArgs& args, const RowInfo& row, std::int32_t base,
                                 const int (&positions)[N], float (&scores)[N]) {
  if (args.soft_cap > 0.0f || args.bias != nullptr) {
    KVCACHE_UNROLL
    for (int i = 0; i < N; ++i) {
      scores[i] = FinalScore(args, row, base, positions[i], scores[i]);
    }
  }
  const int begin = row.begin - base;
  const int end = row.end - base;
  KVCACHE_UNROLL
  for (int i = 0; i < N; ++i) {
    if (positions[i] < begin || positions[i] >= end) scores[i] = MinusInfinity();
  }
}

// The largest score of row r in the split, of all warps.
template <int R>
KVCACHE_DEVICE float LargestOf(const DecodeShared<R>& shared, int r) {
  std::uint32_t low[4];
  std::uint32_t high[4];
  LoadWords(&shared.most[r][0], low);
  LoadWords(&shared.most[r][4], high);
  std::int32_t most = Larger(static_cast<std::int32_t>(low[0]), static_cast<std::int32_t>(high[0]));
  KVCACHE_UNROLL
  for (int i = 1; i < 4; ++i) {
    most =
        Larger(most, Larger(static_cast<std::int32_t>(low[i]), static_cast<std::int32_t>(high[i])));
  }
  return OfOrder(most);
}

KVCACHE_DEVICE float WeightOf(float score, float max) {
  return score != MinusInfinity() ? arithmetic::Exp(Sub(score, max)) : 0.0f;
}

// How a split joins the result: warp r computes it for row r, in two steps around the barrier behind the weights.
struct RowJoin {
  MergeFactors factors;
  float max;

  template <int R>
  KVCACHE_DEVICE void Begin(const SeenSplit& split, DecodeShared<R>& shared) {
    const int r = Warp();
    if (r >= R) return;
    max = LargestOf<R>(shared, r);
    const float before = shared.max[r];
    factors = FactorsOf(before, max);
    WarpBarrier();
    if (Lane() != 0) return;
    const bool hidden = max == MinusInfinity();
    const RowInfo& row = shared.rows[r];
    shared.begin[r] = hidden ? 0 : Larger(row.begin - split.base, 0);
    shared.end[r] = hidden ? 0 : Smaller(row.end - split.base, kAttendSplit);
    shared.keep[r] = factors.keep;
    shared.add[r] = factors.add;
    shared.max[r] = LargerOrNan(before, max);
  }

  // Adds the weights up. `partials` is null if the splits are merged.
  template <int R>
  KVCACHE_DEVICE void End(const AttendArgs& args, const AttendTask& task, float* partials,
                          DecodeShared<R>& shared) {
    const int r = Warp();
    if (r >= R) return;
    float sum = 0.0f;  // of the virtual lane
    KVCACHE_UNROLL
    for (int i = 0; i < kAttendSplit / 16; ++i) {
      sum = Add(sum, shared.weights[r][i * 16 + Lane() % 16]);
    }
    KVCACHE_UNROLL
    for (int apart = 8; apart > 0; apart /= 2) sum = Add(sum, ShuffleXor(sum, apart));
    if (Lane() != 0) return;
    if (partials == nullptr) {
      shared.sum[r] = Merged(factors, shared.sum[r], sum);
    } else if (r < task.rows) {
      float* const last = partials + (r + 1) * args.partial_floats - kAttendTile;
      last[0] = max;
      last[1] = sum;
    }
  }
};

// Writes the largest score and the sum of the weights of merged splits.
template <int R>
KVCACHE_DEVICE void WriteMerged(const AttendArgs& args, const AttendTask& task,
                                const DecodeShared<R>& shared) {
  if (Lane() != 0 || Warp() >= task.rows) return;
  const int r = Warp();
  float* const last = args.partials + task.partials + (r + 1) * args.partial_floats - kAttendTile;
  last[0] = shared.max[r];
  last[1] = shared.sum[r];
}

}  // namespace kvcache::cuda
