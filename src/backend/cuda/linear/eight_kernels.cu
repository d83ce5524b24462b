// Products of block-quantised weights with two to eight columns.
#include "backend/cuda/linear/eight-inl.h"

namespace kvcache::cuda::linear {

#define KVCACHE_LINEAR_EIGHT(name, type)                                   \
  KVCACHE_WAITING_KERNEL(linear_eight_##name, LinearArgs, kEightThreads) { \
    MultiplyEight<type>(args);                                             \
  }

KVCACHE_LINEAR_BLOCK_TYPES(KVCACHE_LINEAR_EIGHT)

#undef KVCACHE_LINEAR_EIGHT

}  // namespace kvcache::cuda::linear
