// The kernels of expert_routing.h, and their arguments.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace kvcache::cuda {

inline constexpr int kSlotThreads = 256;
inline constexpr int kGatherThreads = 256;
inline constexpr std::int64_t kGatherBlock = std::int64_t{kGatherThreads} * 4;

// Where the choices of a batch are, by expert and then by token. All arrays are the device's.
struct SlotTable {
  std::int32_t* of_choice;  // [chosen, tokens]: the slot of each choice
  std::int32_t* tokens;     // [slots]
  std::int32_t* experts;    // [slots]
  float* weights;           // [slots]
  std::int32_t* begin;      // [experts + 1]: the first slot of each expert
};

// Kernel group_slots: a block per expert finds its slots.
struct GroupArgs {
  const std::int32_t* choices;  // [chosen, tokens]
  const float* weights;         // [chosen, tokens]
  SlotTable to;
  std::int32_t count;  // of choices
  std::int32_t chosen;
};

struct GroupMemory {
  std::int32_t of_warp[kSlotThreads / 32];
  std::int32_t before[kSlotThreads / 32];
};

// Kernel gather_columns: y[:, i] = x[:, from[i]]. Blocks [i · blocks, (i + 1) · blocks) copy column i.
struct GatherArgs {
  const float* x;
  const std::int32_t* from;  // [columns of y]
  float* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int64_t width;
  std::int32_t blocks;
  bool vectors;  // both hold vectors of four
};

}  // namespace kvcache::cuda
