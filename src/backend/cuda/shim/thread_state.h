// What the running thread of a kernel is, for the functions that kernels call all the time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::cuda::shim {

struct ThreadState {
  int thread = 0;
  int block_x = 0;
  int block_y = 0;
  int block_z = 0;
  int grid_x = 0;
};

// A host thread runs one kernel at a time.
inline constinit thread_local ThreadState current{};

}  // namespace kvcache::cuda::shim
