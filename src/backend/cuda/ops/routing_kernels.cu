#include "backend/cuda/ops/routing_kernels.h"

#include "backend/cuda/language/kernel.h"
#include "backend/cuda/ops/vectors.h"

namespace kvcache::cuda {
namespace {

constexpr int kWarps = kSlotThreads / 32;

// The number of lanes below this one whose bit is set.
KVCACHE_DEVICE std::int32_t CountBefore(std::uint32_t bits) {
  return PopCount(bits & ((1u << static_cast<std::uint32_t>(Lane())) - 1u));
}

// Returns the sum over the block's threads. REQUIRES: of_warp is used for nothing else.
KVCACHE_DEVICE std::int32_t BlockSum(std::int32_t value, std::int32_t* of_warp) {
  for (int apart = 16; apart > 0; apart /= 2) value += ShuffleXor(value, apart);
  if (Lane() == 0) of_warp[Warp()] = value;
  BlockBarrier();
  std::int32_t sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += of_warp[i];
  return sum;
}

}  // namespace

KVCACHE_KERNEL(group_slots, GroupArgs, kSlotThreads) {
  GroupMemory& shared = SharedMemory<GroupMemory>();
  const std::int32_t expert = BlockX();
  std::int32_t lower = 0;  // choices of experts before this one
  for (std::int32_t i = Thread(); i < args.count; i += kSlotThreads) {
    lower += args.choices[i] < expert ? 1 : 0;
  }
  std::int32_t next = BlockSum(lower, shared.of_warp);
  if (Thread() == 0) {
    args.to.begin[expert] = next;
    if (expert + 1 == GridX()) args.to.begin[expert + 1] = args.count;
  }
  for (std::int32_t first = 0; first < args.count; first += kSlotThreads) {
    const std::int32_t i = first + Thread();
    const bool own = i < args.count && args.choices[i] == expert;
    const std::uint32_t bits = Ballot(own);
    if (Lane() == 0) shared.before[Warp()] = PopCount(bits);
    BlockBarrier();
    std::int32_t slot = next + CountBefore(bits);
    for (int w = 0; w < kWarps; ++w) {
      const std::int32_t of_warp = shared.before[w];
      if (w < Warp()) slot += of_warp;
      next += of_warp;
    }
    BlockBarrier();  // all have read the counts
    if (!own) continue;
    args.to.of_choice[i] = slot;
    args.to.tokens[slot] = i / args.chosen;
    args.to.experts[slot] = expert;
    args.to.weights[slot] = args.weights[i];
  }
}

KVCACHE_KERNEL(gather_columns, GatherArgs, kGatherThreads) {
  const std::int32_t column = BlockX() / args.blocks;
  std::int64_t k = (BlockX() - column * args.blocks) * kGatherBlock + Thread() * 4;
  const float* const x = args.x + args.from[column] * args.x_stride;
  float* const y = args.y + column * args.y_stride;
  if (args.vectors && k + 4 <= args.width) {
    *reinterpret_cast<Four*>(y + k) = *reinterpret_cast<const Four*>(x + k);
    return;
  }
  const std::int64_t end = k + 4 < args.width ? k + 4 : args.width;
  for (; k < end; ++k) y[k] = x[k];
}

}  // namespace kvcache::cuda
