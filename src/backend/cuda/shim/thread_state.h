// What the running thread of a kernel is and may touch, for the functions that kernels call all the time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/shim/device_memory.h"
#include "backend/cuda/shim/shadow.h"

namespace kvcache::cuda::shim {

constexpr std::size_t kEverything = ~std::size_t{0};

struct ThreadState {
  // Accesses to the thread's own stack need no check. Outside of kernels, and without checks, everything is it.
  std::uintptr_t stack_low = 0;
  std::size_t stack_bytes = kEverything;
  Space shared;
  Space global;
  const std::uint16_t* pieces = nullptr;
  std::uintptr_t args_low = 0;
  std::size_t args_bytes = 0;
  Clock clock;
  bool waited = true;  // for earlier launches

  int thread = 0;
  int block_x = 0;
  int block_y = 0;
  int block_z = 0;
  int grid_x = 0;
};

// A host thread runs one kernel at a time.
inline constinit thread_local ThreadState current{};

}  // namespace kvcache::cuda::shim
