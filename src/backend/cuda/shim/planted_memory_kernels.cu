// Kernels that access the wrong memory, or the right memory wrongly. Each has a correct twin.
#include "backend/cuda/language/kernel.h"
#include "backend/cuda/shim/planted_kernels.h"
#include "backend/cuda/shim/planted_twins-inl.h"

namespace kvcache::cuda {

struct MemoryShared {
  float values[64];
  float tail[64];
};

struct alignas(16) Vector4 {
  float values[4];
};

KVCACHE_TWINS(global_past_end, 64) {
  for (int i = Thread(); i < args.count + (kBug ? 1 : 0); i += 64) args.y[i] = args.x[i];
}

KVCACHE_TWINS(global_before_begin, 64) {
  const int i = Thread() - (kBug ? 1 : 0);
  args.y[Thread()] = args.x[i];
}

// The index belongs to a larger matrix.
KVCACHE_TWINS(global_far_away, 64) {
  const std::int64_t stride = kBug ? 100000 : 64;
  args.y[BlockX() * stride + Thread()] = 1.0f;
}

KVCACHE_TWINS(call_memory_past_end, 64) {
  args.piece[Thread() + (kBug ? 1 : 0)] = 1.0f;
}

KVCACHE_TWINS(wrong_memory, 64) {
  args.y[Thread()] = kBug ? args.wrong[Thread()] : args.x[Thread()];
}

KVCACHE_TWINS(shared_past_end, 64) {
  MemoryShared& shared = SharedMemory<MemoryShared>();
  float* const values = shared.tail;
  values[Thread() + (kBug ? 1 : 0)] = 1.0f;
  args.y[Thread()] = values[Thread() + (kBug ? 1 : 0)];
}

KVCACHE_TWINS(shared_before_begin, 64) {
  MemoryShared& shared = SharedMemory<MemoryShared>();
  float* const values = shared.values;
  values[Thread() - (kBug ? 1 : 0)] = 1.0f;
}

// The element lies in the next member of the struct.
KVCACHE_TWINS(index_past_array, 64) {
  MemoryShared& shared = SharedMemory<MemoryShared>();
  shared.values[Thread() + (kBug ? 1 : 0)] = 1.0f;
  shared.tail[Thread()] = 1.0f;
}

KVCACHE_TWINS(shared_too_small, 64) {
  struct Large {
    float values[128 + (kBug ? 1 : 0)];
  };
  SharedMemory<Large>().values[Thread()] = 1.0f;
}

struct StackShared {
  float* address;
};

KVCACHE_TWINS(stack_of_another, 64) {
  StackShared& shared = SharedMemory<StackShared>();
  float mine[2] = {args.x[0], args.x[1]};
  if (Thread() == 0) shared.address = mine;
  BlockBarrier();
  if (Thread() == (kBug ? 40 : 0)) args.y[0] = shared.address[args.bytes[0] & 1];
  BlockBarrier();
}

KVCACHE_TWINS(writes_arguments, 64) {
  PlantedArgs copy = args;
  PlantedArgs* const to = kBug ? const_cast<PlantedArgs*>(&args) : &copy;
  to->count = Thread();
  args.y[Thread()] = static_cast<float>(to->count);
}

KVCACHE_TWINS(copy_past_end, 64) {
  if (Thread() == 0) {
    memcpy(args.y, args.x, static_cast<std::size_t>(args.count) * 4 + (kBug ? 1 : 0));
  }
}

KVCACHE_TWINS(fill_past_end, 64) {
  if (Thread() == 0) memset(args.y, 0, static_cast<std::size_t>(args.count) * 4 + (kBug ? 4 : 0));
}

KVCACHE_TWINS(shared_unwritten, 64) {
  MemoryShared& shared = SharedMemory<MemoryShared>();
  if (Thread() < (kBug ? 63 : 64)) shared.values[Thread()] = 1.0f;
  BlockBarrier();
  args.y[Thread()] = shared.values[63 - Thread()];
}

// What another block left is not there any more.
KVCACHE_TWINS(shared_of_another_block, 64) {
  MemoryShared& shared = SharedMemory<MemoryShared>();
  if (!kBug || BlockX() == 0) shared.values[Thread()] = 1.0f;
  BlockBarrier();
  args.y[BlockX() * 64 + Thread()] = shared.values[63 - Thread()];
}

KVCACHE_TWINS(call_memory_unwritten, 64) {
  if (!kBug || Thread() != 5) args.piece[Thread()] = 1.0f;
  args.y[Thread()] = args.piece[Thread()];
}

// Half of the word is written.
KVCACHE_TWINS(half_unwritten, 64) {
  MemoryShared& shared = SharedMemory<MemoryShared>();
  auto* const halves = reinterpret_cast<std::uint16_t*>(&shared.values[Thread()]);
  halves[0] = 1;
  if (!kBug) halves[1] = 2;
  args.y[Thread()] = shared.values[Thread()];
}

KVCACHE_TWINS(misaligned_vector, 64) {
  const float* const from = args.x + Thread() * 4 + (kBug ? 1 : 0);
  const Vector4 vector = *reinterpret_cast<const Vector4*>(from);
  args.y[Thread()] = Add(vector.values[0], vector.values[3]);
}

KVCACHE_TWINS(misaligned_float, 64) {
  const std::uint8_t* const from = args.bytes + Thread() * 4 + (kBug ? 2 : 0);
  args.y[Thread()] = *reinterpret_cast<const float*>(from);
}

// The address of a word's bytes may be odd.
KVCACHE_TWINS(misaligned_store, 64) {
  const std::uint32_t value = 7;
  std::uint8_t* const to = args.bytes + Thread() * 8 + 1;
  if (kBug) {
    *reinterpret_cast<std::uint32_t*>(to) = value;
  } else {
    memcpy(to, &value, 4);
  }
}

KVCACHE_TWINS(shift_too_far, 64) {
  const int shift = Thread() % 32 + (kBug ? 1 : 0);
  args.y[Thread()] = static_cast<float>(1U << shift);
}

KVCACHE_TWINS(division_by_zero, 64) {
  const int divisor = Thread() + (kBug ? 0 : 1);
  args.y[Thread()] = static_cast<float>(args.count / divisor);
}

}  // namespace kvcache::cuda
