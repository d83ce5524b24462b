// Kernels in which an access or a thread comes too early. Each has a correct twin.
#include "backend/cuda/language/kernel.h"
#include "backend/cuda/shim/planted_kernels.h"
#include "backend/cuda/shim/planted_twins-inl.h"

namespace kvcache::cuda {

struct OrderShared {
  alignas(16) float values[256];
  alignas(16) float next[256];
  std::uint8_t bytes[256];
};

KVCACHE_TWINS(no_block_barrier, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.values[Thread()] = args.x[Thread()];
  if (!kBug) BlockBarrier();
  args.y[Thread()] = shared.values[255 - Thread()];
}

// The second round overwrites what others still read.
KVCACHE_TWINS(no_barrier_before_reuse, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  float sum = 0.0f;
  for (int round = 0; round < 2; ++round) {
    shared.values[Thread()] = args.x[round * 256 + Thread()];
    BlockBarrier();
    sum = Add(sum, shared.values[255 - Thread()]);
    if (!kBug) BlockBarrier();
  }
  args.y[Thread()] = sum;
}

KVCACHE_TWINS(no_warp_barrier, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.values[Thread()] = args.x[Thread()];
  if (!kBug) WarpBarrier();
  args.y[Thread()] = shared.values[Thread() ^ 1];
}

KVCACHE_TWINS(no_warp_barrier_before_reuse, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.values[Thread()] = args.x[Thread()];
  WarpBarrier();
  const float neighbor = shared.values[Thread() ^ 1];
  if (!kBug) WarpBarrier();
  shared.values[Thread()] = neighbor;
}

KVCACHE_TWINS(shuffle_for_barrier, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.values[Thread()] = args.x[Thread()];
  const float other = ShuffleXor(args.x[Thread()], 1);
  if (!kBug) WarpBarrier();
  args.y[Thread()] = Add(other, shared.values[Thread() ^ 1]);
}

KVCACHE_TWINS(warp_barrier_for_block, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.values[Thread()] = args.x[Thread()];
  if (kBug) {
    WarpBarrier();
  } else {
    BlockBarrier();
  }
  args.y[Thread()] = shared.values[(Thread() + 1) % 256];
}

KVCACHE_TWINS(all_threads_write, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  if (kBug || Thread() == 0) shared.values[0] = args.x[0];
  BlockBarrier();
  args.y[Thread()] = shared.values[0];
}

// Neighbors write the same byte; bytes of one word are no race.
KVCACHE_TWINS(same_byte, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.bytes[kBug ? Thread() / 2 : Thread()] = static_cast<std::uint8_t>(Thread());
}

// A thread reads a word of which another has written a byte.
KVCACHE_TWINS(byte_of_word, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  shared.values[Thread()] = 0.0f;
  BlockBarrier();
  auto* const byte = reinterpret_cast<std::uint8_t*>(shared.values) + Thread();
  *byte = 1;
  if (!kBug) BlockBarrier();
  args.y[Thread()] = shared.values[Thread()];
}

// All lanes of all warps read a word that one thread overwrites.
KVCACHE_TWINS(all_threads_read, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  for (int round = 0; round < 3; ++round) {
    if (Thread() == 100) shared.values[0] = args.x[round];
    BlockBarrier();
    args.y[Thread()] = shared.values[0];
    if (!kBug) BlockBarrier();
  }
}

// The same within a warp.
KVCACHE_TWINS(all_lanes_read, 256) {
  OrderShared& shared = SharedMemory<OrderShared>();
  for (int round = 0; round < 3; ++round) {
    if (Lane() == 7) shared.values[Warp()] = args.x[round];
    WarpBarrier();
    args.y[Thread()] = shared.values[Warp()];
    if (!kBug) WarpBarrier();
  }
}

// All threads of all blocks read what one of them overwrites.
KVCACHE_TWINS(all_blocks_read, 64) {
  args.y[BlockX() * 64 + Thread()] = args.x[0];
  BlockBarrier();
  args.y[BlockX() * 64 + Thread()] = args.x[0];
  BlockBarrier();
  if (BlockX() == 0 && Thread() == 3) args.x[kBug ? 0 : 1] = 1.0f;
}

KVCACHE_TWINS(global_in_block, 256) {
  args.x[Thread()] = 1.0f;
  if (!kBug) BlockBarrier();
  args.y[Thread()] = args.x[(Thread() + 32) % 256];
}

KVCACHE_TWINS(blocks_write_the_same, 64) {
  const int first = BlockX() * (kBug ? 63 : 64);
  args.y[first + Thread()] = 1.0f;
}

// What another block writes is there in the next launch only.
KVCACHE_TWINS(reads_another_block, 64) {
  const int i = BlockX() * 64 + Thread();
  args.y[i] = 1.0f;
  args.x[i] = kBug ? args.y[(i + 64) % 256] : args.y[i];
}

KVCACHE_TWINS(in_place_across_blocks, 64) {
  const int i = BlockX() * 64 + Thread();
  const float next = args.x[kBug ? i + 1 : i];
  BlockBarrier();
  args.x[i] = next;
}

KVCACHE_TWINS(barrier_in_branch, 256) {
  if (!kBug || Thread() < 96) BlockBarrier();
}

KVCACHE_TWINS(ends_before_barrier, 256) {
  if (kBug && Thread() == 77) return;
  BlockBarrier();
}

KVCACHE_TWINS(two_barriers, 256) {
  if (kBug && Warp() == 3) {
    BlockBarrier();
  } else {
    BlockBarrier();
  }
}

KVCACHE_TWINS(barrier_and_shuffle, 64) {
  if (kBug && Warp() == 1) {
    args.y[Thread()] = ShuffleXor(args.x[Thread()], Lane() == 3 ? 1 : 2);
    if (Lane() == 3) ShuffleXor(1.0f, 1);
  }
  BlockBarrier();
}

KVCACHE_TWINS(half_of_warp, 64) {
  if (!kBug || Lane() < 16) args.y[Thread()] = ShuffleXor(args.x[Thread()], 8);
}

KVCACHE_TWINS(different_calls, 64) {
  if (kBug && Lane() == 9) {
    args.y[Thread()] = Shuffle(args.x[Thread()], 0);
  } else {
    args.y[Thread()] = ShuffleXor(args.x[Thread()], 1);
  }
}

KVCACHE_TWINS(lane_of_shuffle, 64) {
  args.y[Thread()] = Shuffle(args.x[Thread()], kBug ? Lane() + 1 : (Lane() + 1) % 32);
}

KVCACHE_TWINS(mask_of_shuffle, 64) {
  args.y[Thread()] = ShuffleXor(args.x[Thread()], kBug ? 32 : 16);
}

KVCACHE_TWINS(no_wait_for_copy, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + Thread() * 4, args.x + Thread() * 4);
  AsyncCommit();
  if (!kBug) AsyncWait<0>();
  args.y[Thread()] = shared.values[Thread() * 4];
}

KVCACHE_TWINS(waits_for_fewer, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + Thread() * 4, args.x + Thread() * 4);
  AsyncCommit();
  AsyncCopy16(shared.next + Thread() * 4, args.x + 256 + Thread() * 4);
  AsyncCommit();
  AsyncWait<kBug ? 1 : 0>();
  args.y[Thread()] = Add(shared.values[Thread() * 4], shared.next[Thread() * 4]);
}

KVCACHE_TWINS(copy_of_another, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + Thread() * 4, args.x + Thread() * 4);
  AsyncCommit();
  AsyncWait<0>();
  if (!kBug) BlockBarrier();
  args.y[Thread()] = shared.values[(63 - Thread()) * 4];
}

// The barrier comes before the wait: other threads see the copies behind a barrier after it.
KVCACHE_TWINS(barrier_before_wait, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + Thread() * 4, args.x + Thread() * 4);
  AsyncCommit();
  if (kBug) BlockBarrier();
  AsyncWait<0>();
  if (!kBug) BlockBarrier();
  args.y[Thread()] = shared.values[(63 - Thread()) * 4];
}

KVCACHE_TWINS(copy_into_use, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  float sum = 0.0f;
  for (int round = 0; round < 2; ++round) {
    AsyncCopy16(shared.values + Thread() * 4, args.x + round * 256 + Thread() * 4);
    AsyncCommit();
    AsyncWait<0>();
    BlockBarrier();
    sum = Add(sum, shared.values[(63 - Thread()) * 4]);
    if (!kBug) BlockBarrier();
  }
  args.y[Thread()] = sum;
}

KVCACHE_TWINS(misaligned_copy, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + Thread() * 4, args.x + Thread() * 4 + (kBug ? 2 : 0));
  AsyncCommit();
  AsyncWait<0>();
}

KVCACHE_TWINS(copy_past_shared, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + (Thread() + (kBug ? 100 : 0)) * 4, args.x + Thread() * 4);
  AsyncCommit();
  AsyncWait<0>();
}

// An earlier launch of each of the following.
KVCACHE_KERNEL(planted_before, PlantedArgs, 64) {
  args.y[Thread()] = 1.0f;
}

KVCACHE_WAITING_TWINS(writes_early, 64) {
  if (!kBug) WaitForEarlier();
  args.x[Thread()] = 1.0f;
  WaitForEarlier();
}

KVCACHE_WAITING_TWINS(reads_early, 64) {
  const float early = LoadConstant((kBug ? args.y : args.x) + Thread());
  WaitForEarlier();
  args.x[Thread() + 64] = Add(early, args.y[Thread()]);
}

// On a device the load may come before the wait all the same.
KVCACHE_TWINS(constant_of_kernel, 64) {
  args.x[Thread()] = kBug ? LoadConstant(args.y + Thread()) : LoadOnly(args.y + Thread());
}

KVCACHE_WAITING_TWINS(copies_early, 64) {
  OrderShared& shared = SharedMemory<OrderShared>();
  AsyncCopy16(shared.values + Thread() * 4, (kBug ? args.y : args.x) + Thread() * 4);
  AsyncCommit();
  AsyncWait<0>();
  WaitForEarlier();
}

KVCACHE_WAITING_TWINS(some_do_not_wait, 64) {
  if (!kBug || Thread() != 7) WaitForEarlier();
}

}  // namespace kvcache::cuda
