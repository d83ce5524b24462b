// Weighted sums of float values of a split: a_d = Σ_j p_j v_jd, one chain over ascending positions. Positions
// that a row does not see are skipped, so what their cells hold cannot matter.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/attention/softmax-inl.h"
#include "backend/cuda/attention/split-inl.h"
#include "backend/cuda/attention/stages-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

// A thread's sums, and what it needs to make them.
template <class Shape>
struct ValueSums {
  static constexpr int kDims = Shape::kDims;
  static constexpr int kRows = Shape::kValueRows;

  const SplitInfo& info;
  const AttendShared<Shape::kRows>& shared;
  int row;    // the first
  int begin;  // positions that all rows which see any see, and that are retained
  int end;
  float sums[kRows][kDims];

  KVCACHE_DEVICE ValueSums(const SplitInfo& of_split, const AttendShared<Shape::kRows>& of_block)
      : info(of_split),
        shared(of_block),
        row(Thread() / Shape::kValueThreads * kRows),
        begin(0),
        end(0) {}

  // REQUIRES: the weights are visible.
  KVCACHE_DEVICE void Start() {
    begin = info.begin;
    end = info.holes != 0 ? 0 : info.end;
    for (int r = 0; r < kRows; ++r) {
      const int first = shared.begin[row + r];
      const int last = shared.end[row + r];
      if (last <= first) continue;
      begin = Larger(begin, first);
      end = Smaller(end, last);
    }
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      KVCACHE_UNROLL
      for (int i = 0; i < kDims; ++i) sums[r][i] = 0.0f;
    }
  }

  // Four positions that all rows see. REQUIRES: position is a multiple of 4.
  KVCACHE_DEVICE void AddFour(int position, const float (&values)[4][kDims]) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float weights[4];
      LoadFloats(&shared.scores[row + r][position], weights);
      KVCACHE_UNROLL
      for (int j = 0; j < 4; ++j) {
        KVCACHE_UNROLL
        for (int i = 0; i < kDims; ++i) sums[r][i] = Fma(weights[j], values[j][i], sums[r][i]);
      }
    }
  }

  // A position that is retained, for the rows that see it.
  KVCACHE_DEVICE void AddOne(int position, const float (&values)[kDims]) {
    KVCACHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (position < shared.begin[row + r] || position >= shared.end[row + r]) continue;
      const float weight = shared.scores[row + r][position];
      KVCACHE_UNROLL
      for (int i = 0; i < kDims; ++i) sums[r][i] = Fma(weight, values[i], sums[r][i]);
    }
  }
};

// Where a task's results go: those of the current split, or the only ones.
struct Results {
  float* first;  // of row 0
  std::int64_t row_floats;
  int rows;
  bool merge;
};

template <class Shape>
KVCACHE_DEVICE void DepositSums(const ValueSums<Shape>& of, const Results& results, bool neighbors,
                                int first, int count) {
  const int item = Thread() % Shape::kValueThreads;
  const int from = neighbors ? item * Shape::kDims : item;
  const int step = neighbors ? 1 : Shape::kValueThreads;
  float before[Shape::kValueRows][Shape::kDims];
  KVCACHE_UNROLL
  for (int r = 0; r < Shape::kValueRows; ++r) {
    const Deposit deposit(of.shared, results.merge, of.row + r);
    const float* const at = results.first + (of.row + r) * results.row_floats + first;
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kDims; ++i) {
      const int d = from + i * step;
      before[r][i] = of.row + r < results.rows && d < count ? deposit.Before(at + d) : 0.0f;
    }
  }
  KVCACHE_UNROLL
  for (int r = 0; r < Shape::kValueRows; ++r) {
    if (of.row + r >= results.rows) continue;
    const Deposit deposit(of.shared, results.merge, of.row + r);
    float* const to = results.first + (of.row + r) * results.row_floats + first;
    KVCACHE_UNROLL
    for (int i = 0; i < Shape::kDims; ++i) {
      const int d = from + i * step;
      if (d < count) deposit.Store(before[r][i], of.sums[r][i], to + d);
    }
  }
}

// Values d, d + 1, … of a position's row, which has `count`.
template <class T, int N>
KVCACHE_DEVICE void LoadValues(const std::uint8_t* row, int d, int count, float (&values)[N]) {
  if (d + N <= count) return LoadWide<T>(row + d * T::kBytes, values);
  if constexpr (N > 1) {
    KVCACHE_UNROLL
    for (int i = 0; i < N; ++i) {
      if (d + i < count) values[i] = T::At(row + (d + i) * T::kBytes);
    }
  }
}

// Where the rows of a stage's positions are, and the thread's values in them.
struct ValueRows {
  const std::uint8_t* memory;  // the row of position `first`
  int row_bytes;
  int first;
  int d;      // the thread's first value
  int count;  // of a row

  KVCACHE_DEVICE const std::uint8_t* At(int position) const {
    return memory + (position - first) * row_bytes;
  }
};

// Adds the positions [begin, end), one at a time, for the rows that see them.
template <class Shape, class T>
KVCACHE_DEVICE void AddSomeRows(const ValueRows& rows, int begin, int end, ValueSums<Shape>& of) {
  KVCACHE_UNROLL_BY(1)
  for (int j = begin; j < end; ++j) {
    if (of.info.cells[j] < 0) continue;
    float values[Shape::kDims] = {};
    LoadValues<T>(rows.At(j), rows.d, rows.count, values);
    of.AddOne(j, values);
  }
}

// Adds the positions from rows.first on: those that all rows see four at a time.
template <class Shape, class T>
KVCACHE_DEVICE void AddRows(const ValueRows& rows, int end, ValueSums<Shape>& of) {
  const bool whole = rows.d + Shape::kDims <= rows.count;  // else a few values are left
  const int from = whole ? Smaller((Larger(rows.first, of.begin) + 3) & ~3, end) : end;
  const int until = Larger(Smaller(end, of.end) & ~3, from);
  AddSomeRows<Shape, T>(rows, Larger(rows.first, of.info.begin), from, of);
  const std::uint8_t* at = rows.At(from) + rows.d * T::kBytes;
  KVCACHE_UNROLL_BY(2)
  for (int j = from; j < until; j += 4) {
    float values[4][Shape::kDims];
    KVCACHE_UNROLL
    for (int i = 0; i < 4; ++i, at += rows.row_bytes) LoadWide<T>(at, values[i]);
    of.AddFour(j, values);
  }
  AddSomeRows<Shape, T>(rows, until, end, of);
}

// Adds the slots [begin, end), whose values in tiles begin at `memory`. The thread's values are
// kValueThreads apart, from d on.
template <class Shape, class T>
KVCACHE_DEVICE void AddTiles(const std::uint8_t* memory, int tile_dims, int begin, int end, int d,
                             int count, ValueSums<Shape>& of) {
  constexpr int kPitch = kAttendTile * T::kBytes + 16;
  const std::uint8_t* tile = memory + d * kPitch;
  for (int slot = begin; slot < end; ++slot, tile += tile_dims * kPitch) {
    const int position = of.info.slot_position[slot];
    const int first = Larger(of.begin, of.info.slot_begin[slot]);
    const int last = Smaller(of.end, of.info.slot_begin[slot + 1]);
    KVCACHE_UNROLL_BY(1)
    for (int lane = 0; lane < kAttendTile; lane += 4) {
      float values[4][Shape::kDims] = {};
      KVCACHE_UNROLL
      for (int i = 0; i < Shape::kDims; ++i) {
        if (d + i * Shape::kValueThreads >= count) continue;
        float four[4];
        LoadWide<T>(tile + i * Shape::kValueThreads * kPitch + lane * T::kBytes, four);
        KVCACHE_UNROLL
        for (int j = 0; j < 4; ++j) values[j][i] = four[j];
      }
      const int j = position + lane;
      if (j % 4 == 0 && j >= first && j + 4 <= last) {
        of.AddFour(j, values);
        continue;
      }
      KVCACHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = PositionIn(of.info, slot, lane + i);
        if (at >= 0) of.AddOne(at, values[i]);
      }
    }
  }
}

// One stage of one type. `part` is its number in the pass.
template <class Shape, class T>
KVCACHE_DEVICE void AddStage(const AttendArgs& args, const std::uint8_t* memory, bool tiles,
                             int part, int count, ValueSums<Shape>& of) {
  const SplitInfo& info = of.info;
  const int item = Thread() % Shape::kValueThreads;
  const int step = info.value_step;
  if (tiles) {
    if (item >= count) return;
    AddTiles<Shape, T>(memory, args.pass_dims, part * step, Smaller((part + 1) * step, info.slots),
                       item, count, of);
  } else {
    if (item * Shape::kDims >= count) return;
    const int begin = (info.begin & ~3) + part * step;
    AddRows<Shape, T>({memory, args.row_bytes, begin, item * Shape::kDims, count},
                      Smaller(begin + step, info.end), of);
  }
}

template <class Shape, class AllStages>
KVCACHE_DEVICE void SumFloatValues(const AttendArgs& args, const SplitInfo& info, AllStages& stages,
                                   const AttendShared<Shape::kRows>& shared,
                                   const Results& results) {
  const bool tiles = args.values_in_tiles != 0 && info.gathered == 0;
  const int stage_count = info.value_stages;
  ValueSums<Shape> of(info, shared);
  int part = 0;
  int first = 0;
  KVCACHE_UNROLL_BY(1)
  while (first < args.v_dim) {
    const std::uint8_t* const memory = stages.Next();
    const int count = Smaller(args.pass_dims, args.v_dim - first);
    if (part == 0) of.Start();
    if (args.v_type == KvType::kF16) {
      AddStage<Shape, StoredF16>(args, memory, tiles, part, count, of);
    } else if (args.v_type == KvType::kBF16) {
      AddStage<Shape, StoredBF16>(args, memory, tiles, part, count, of);
    } else {
      AddStage<Shape, StoredF32>(args, memory, tiles, part, count, of);
    }
    if (++part < stage_count) continue;
    DepositSums<Shape>(of, results, !tiles, first, count);
    part = 0;
    first += args.pass_dims;
  }
}

}  // namespace kvcache::cuda
