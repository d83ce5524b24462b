#include "backend/cuda/linear/slot_tasks_kernels.h"

#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda::linear {
namespace {

// Numbers of tiles of 8 columns, and of blocks of threads.
struct Count {
  std::int32_t tiles;
  std::int32_t blocks;
};

KVCACHE_DEVICE std::int32_t WarpSum(std::int32_t value) {  // of the threads up to this one
  KVCACHE_UNROLL
  for (int behind = 1; behind < 32; behind *= 2) {
    const std::int32_t other = Shuffle(value, (Lane() + 32 - behind) % 32);
    if (Lane() >= behind) value += other;
  }
  return value;
}

// Returns the sum of `own` over the block's threads before this one, and adds the sum over all to `total`.
KVCACHE_DEVICE Count CountsBefore(const Count& own, SlotTasksMemory& memory, Count& total) {
  const Count up_to = {WarpSum(own.tiles), WarpSum(own.blocks)};
  if (Lane() == 31) {
    memory.tiles[Warp()] = up_to.tiles;
    memory.blocks[Warp()] = up_to.blocks;
  }
  BlockBarrier();
  Count before = {total.tiles + up_to.tiles - own.tiles, total.blocks + up_to.blocks - own.blocks};
  for (int w = 0; w < kSlotTaskThreads / 32; ++w) {
    const Count of_warp = {memory.tiles[w], memory.blocks[w]};
    if (w < Warp()) before = {before.tiles + of_warp.tiles, before.blocks + of_warp.blocks};
    total = {total.tiles + of_warp.tiles, total.blocks + of_warp.blocks};
  }
  BlockBarrier();  // all have read the sums
  return before;
}

// An expert's slots.
struct Slots {
  std::int32_t expert;
  std::int32_t first;
  std::int32_t count;
};

// Calls write(slots, before) for each expert, `before` counting what the experts before it need, and last for a task
// without columns. blocks_of(columns) is the number of blocks of threads.
template <class BlocksOf, class Write>
KVCACHE_DEVICE void WriteTasks(const SlotTasksArgs& args, const BlocksOf& blocks_of,
                               const Write& write) {
  SlotTasksMemory& memory = SharedMemory<SlotTasksMemory>();
  Count total = {0, 0};
  for (std::int32_t from = 0; from <= args.experts; from += kSlotTaskThreads) {
    Slots slots = {from + Thread(), 0, 0};
    if (slots.expert < args.experts) {
      slots.first = args.begin[slots.expert];
      slots.count = args.begin[slots.expert + 1] - slots.first;
    }
    const Count own = {static_cast<std::int32_t>(TilesOf(slots.count)), blocks_of(slots.count)};
    const Count before = CountsBefore(own, memory, total);
    if (slots.expert <= args.experts) write(slots, before);
  }
}

KVCACHE_DEVICE QuantizedInput TilesFrom(const QuantizedInput& input, const TileWords& words,
                                        std::int64_t tile) {
  return {input.values + tile * words.values, input.scales + tile * words.scales,
          input.sums + tile * words.sums, input.halves + tile * words.halves};
}

KVCACHE_DEVICE void WriteInput(const SlotTasksArgs& args, const SlotInput& input) {
  WriteTasks(
      args,
      [&](std::int32_t columns) {
        return static_cast<std::int32_t>(TilesOf(columns)) * input.tile_blocks;
      },
      [&](const Slots& slots, const Count& before) {
        input.tasks[slots.expert] = {input.x + std::int64_t{slots.first} * input.inputs,
                                     TilesFrom(input.to, input.words, before.tiles), input.inputs,
                                     slots.count, before.blocks};
      });
}

KVCACHE_DEVICE void WriteProduct(const SlotTasksArgs& args, const SlotProduct& product) {
  WriteTasks(
      args,
      [&](std::int32_t columns) {
        return (columns + product.tile_columns - 1) / product.tile_columns * product.tile_blocks;
      },
      [&](const Slots& slots, const Count& before) {
        const bool one = args.one_column;
        product.tasks[slots.expert] = {
            product.weights + slots.expert * product.expert_bytes,
            TilesFrom(product.x, product.words, one ? 0 : before.tiles),
            product.columns_x + (one ? 0 : std::int64_t{slots.first} * product.inputs),
            product.y + std::int64_t{slots.first} * product.outputs,
            product.inputs,
            product.outputs,
            slots.count,
            before.blocks};
      });
}

}  // namespace

KVCACHE_KERNEL(linear_slot_tasks, SlotTasksArgs, kSlotTaskThreads) {
  if (BlockX() < args.input_count) {
    WriteInput(args, args.inputs[BlockX()]);
  } else {
    WriteProduct(args, args.products[BlockX() - args.input_count]);
  }
}

}  // namespace kvcache::cuda::linear
