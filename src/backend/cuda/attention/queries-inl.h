// Prepares the queries of a task's rows in shared memory: scaled, and for keys of block types transformed and
// rounded to codes.
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_kernels.h"
#include "backend/cuda/attention/shape-inl.h"
#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

template <class Shape>
KVCACHE_DEVICE void ListRows(const AttendArgs& args, const AttendTask& task,
                             AttendShared<Shape::kRows>& shared) {
  const int r = Thread();
  if (r >= Shape::kRows) return;
  RowInfo row{-1, 0, 0, 0, 0};
  if (r < task.rows) {
    const int of_all = task.first_row + r;
    const AttendToken token = args.tokens[task.first_token + of_all / args.group];
    const int head = task.kv_head * args.group + of_all % args.group;
    row = {token.index * args.heads + head, head, token.position, token.begin, token.end};
  }
  shared.rows[r] = row;
  shared.max[r] = MinusInfinity();
  shared.sum[r] = 0.0f;
}

// query[d][row]; rows that the task does not have are zeros.
template <int R>
KVCACHE_DEVICE void ScaleQueries(const AttendArgs& args, const RowInfo (&rows)[R], float* query) {
  for (int r = Warp(); r < R; r += kAttendWarps) {
    const std::int32_t row = rows[r].query;
    const float* const from = args.q + std::int64_t{row < 0 ? 0 : row} * args.k_dim;
    for (int d = Lane(); d < args.k_dim; d += 32) {
      query[d * R + r] = row < 0 ? 0.0f : Mul(from[d], args.scale);
    }
  }
}

// 1/√n, rounded. REQUIRES: n is a power of two.
KVCACHE_DEVICE float InverseRoot(int n) {
  float root = 1.0f;
  for (; n >= 4; n /= 4) root = Mul(root, 0.5f);
  return n == 2 ? Mul(root, 0x1.6a09e6p-1f) : root;
}

// The Hadamard transform of cpu/common/hadamard-inl.h, by a warp, `size` values at a time.
KVCACHE_DEVICE void Transform(float* x, int dim, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int i = Lane(); i < dim / 2; i += 32) {
      const int at = (i & ~(half - 1)) * 2 + (i & (half - 1));
      const float a = x[at];
      const float b = x[at + half];
      x[at] = Add(a, b);
      x[at + half] = Sub(a, b);
    }
    WarpBarrier();
  }
  const float factor = InverseRoot(size);
  for (int i = Lane(); i < dim; i += 32) x[i] = Mul(x[i], factor);
  WarpBarrier();
}

// The queries for keys of block types.
struct CodedQueries {
  std::int8_t* codes;  // [queries][pitch]
  float* units;        // [k_dim / 32][queries]
  std::int32_t* starts;
  std::int32_t pitch;
};

// kQueries: as many as products have columns, at least R.
template <int R, int kQueries>
KVCACHE_DEVICE void CodeQueries(const AttendArgs& args, const RowInfo (&rows)[R],
                                float* transformed, const CodedQueries& to) {
  const int offset = args.k_type == KvType::kQ8_0 ? 128 : 8;
  float* const x = transformed + Warp() * args.k_dim;
  for (int r = Warp(); r < kQueries; r += kAttendWarps) {
    const std::int32_t row = r < R ? rows[r].query : -1;
    const float* const from = args.q + std::int64_t{row < 0 ? 0 : row} * args.k_dim;
    for (int d = Lane(); d < args.k_dim; d += 32) x[d] = row < 0 ? 0.0f : Mul(from[d], args.scale);
    WarpBarrier();
    if (row >= 0) Transform(x, args.k_dim, args.k_dim & -args.k_dim);
    for (int b = 0; b < args.k_dim / 32; ++b) {
      const float value = x[b * 32 + Lane()];
      const Unit unit = UnitOf(LargestOfWarp(MagnitudeBits(value)), 127.0f);
      const float rounded =
          unit.inverse == 0.0f ? kIntegers : Add(Mul(value, unit.inverse), kIntegers);
      const std::int32_t code = static_cast<std::int32_t>(BitsOf(rounded)) - kIntegerBits;
      to.codes[r * to.pitch + b * 32 + Lane()] = static_cast<std::int8_t>(code);
      const std::int32_t sum = SumOfWarp(code);
      if (Lane() == 0) {
        to.units[b * kQueries + r] = unit.unit;
        to.starts[b * kQueries + r] = kIntegerBits - offset * sum;
      }
    }
    WarpBarrier();
  }
}

}  // namespace kvcache::cuda
