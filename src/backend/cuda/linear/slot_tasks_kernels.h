// The kernel that writes the tasks of products by experts' slots (slot_products.h), and its arguments.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/linear/linear_kernels.h"

namespace kvcache::cuda::linear {

inline constexpr int kSlotTaskThreads = 256;
inline constexpr int kMostSlotInputs = 3;    // ways to quantise
inline constexpr int kMostSlotProducts = 4;  // outputs of a call

// Lists of tasks, [experts + 1] each: an expert's slots are the columns of its task, and the last one ends the list.
struct SlotInput {
  QuantizeTask* tasks;
  const float* x;     // by slot
  QuantizedInput to;  // whole tiles for each expert
  TileWords words;
  std::int32_t inputs;
  std::int32_t tile_blocks;  // blocks of threads for a tile of 8 columns
};
struct SlotProduct {
  LinearTask* tasks;
  const std::byte* weights;   // of expert 0
  std::int64_t expert_bytes;  // from an expert's matrix to the next one's
  QuantizedInput x;
  TileWords words;
  const float* columns_x;
  float* y;
  std::int32_t inputs;
  std::int32_t outputs;
  std::int32_t tile_columns;  // of a block of threads
  std::int32_t tile_blocks;   // blocks of threads for as many columns
};

// Kernel linear_slot_tasks: a block of threads for each list.
struct SlotTasksArgs {
  const std::int32_t* begin;  // [experts + 1]: the first slot of each expert
  std::int32_t experts;
  std::int32_t input_count;
  bool one_column;  // all slots read the first column of x
  SlotInput inputs[kMostSlotInputs];
  SlotProduct products[kMostSlotProducts];
};

// Sums of the warps.
struct SlotTasksMemory {
  std::int32_t tiles[kSlotTaskThreads / 32];
  std::int32_t blocks[kSlotTaskThreads / 32];
};

}  // namespace kvcache::cuda::linear
