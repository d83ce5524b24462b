// The kernels of linear layers and their arguments, for the host and for the device.
//
// A launch does the work of several products: each task has a run of the launch's blocks along x, from
// `first_block` on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/types.h"

namespace kvcache::cuda::linear {

// Tasks in ascending order of first_block; a few of them lie in the arguments themselves. A task without columns has
// no work: blocks behind the last task's end there.
template <class Task>
struct TaskList {
  static constexpr int kHere = 8;
  Task here[kHere];
  const Task* all;  // or null: they are `here`
  std::int32_t count;
};

// ---- Inputs of block-quantised weights
//
// Columns are cut into tiles of 8, and inputs into pairs of 32. What lies together is what a lane of a
// warp (g = lane / 4, t = lane % 4) needs for the matrix instruction, or for its results:
//
//   values   [tile][pair][lane][32 inputs][half] words of four inputs: column g, group t of the half
//   scales   [tile][pair][t][32 inputs][part][2] columns 2 t and 2 t + 1; a part of 16 inputs if inputs
//            are scaled per 16. Per 256: [tile][chunk][column]
//   sums     [tile][pair][t][32 inputs][2]: sums of the values; per 32 times scale
//   halves   [tile][pair][t][32 inputs][half][2]: sums of 16 values; per 256 only
//
// Columns that do not fill a tile, and 32 inputs that do not fill a pair, are zero.
struct QuantizedInput {
  std::uint32_t* values;
  float* scales;
  float* sums;
  float* halves;
};

// The 4-byte words that each tile takes of the four arrays.
struct TileWords {
  std::int64_t values;
  std::int64_t scales;
  std::int64_t sums;
  std::int64_t halves;
};

inline constexpr int kTileColumns = 8;
inline constexpr int kPairInputs = 64;
inline constexpr int kPairWords = 128;  // of values, of a tile

constexpr std::int64_t TilesOf(std::int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns;
}
constexpr std::int64_t PairsOf(std::int64_t inputs) {
  return (inputs + kPairInputs - 1) / kPairInputs;
}

struct QuantizeTask {
  const float* x;  // [columns][inputs], 16-byte aligned
  QuantizedInput to;
  std::int32_t inputs;
  std::int32_t columns;
  std::int32_t first_block;
};
struct QuantizeArgs {
  TaskList<QuantizeTask> tasks;
};
// A warp quantises 256 inputs of a column.
inline constexpr int kQuantizeThreads = 256;

// ---- Products

struct LinearTask {
  const std::byte* weights;  // panels (cpu/common/block_layout.h), or rows of RowStride values
  QuantizedInput x;
  const float* columns_x;  // [columns][inputs], for float weights
  float* y;                // [columns][outputs]
  std::int32_t inputs;
  std::int32_t outputs;
  std::int32_t columns;
  std::int32_t first_block;
};
struct LinearArgs {
  TaskList<LinearTask> tasks;
};

// One column: a block takes a panel. Its warps take pairs of chunks in turn, a lane for each row of the two.
inline constexpr int kOneThreads = 128;

// Up to eight columns: a block takes two panels. Its warps take chunks in turn.
inline constexpr int kEightThreads = 96;

// More columns (many_memory.h).
inline constexpr int kManyThreads = 256;
inline constexpr int kManyWarps = kManyThreads / 32;

// Rows of float weights lie in device memory at a stride of whole 16 values.
constexpr std::int64_t RowStride(std::int64_t inputs) {
  return (inputs + 15) / 16 * 16;
}

inline constexpr int kFloatFewThreads = 128;  // 32 rows
inline constexpr int kFloatManyThreads = 512;
inline constexpr int kFloatManyRows = 64;
inline constexpr int kFloatManyColumns = 32;
// Slabs of 32 inputs: two of them.
inline constexpr int kFloatManyInputs = 32;
// Of a row or column in a slab, in floats; two neighbours then lie in different banks.
inline constexpr int kFloatManyStride = 48;
inline constexpr int kFloatManyBytes =
    2 * (kFloatManyRows + kFloatManyColumns) * kFloatManyStride * 4;

}  // namespace kvcache::cuda::linear
